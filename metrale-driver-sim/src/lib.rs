// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CUDA driver in software: a second implementation of DriverApi that needs no GPU.
