// SPDX-License-Identifier: MIT OR Apache-2.0
// Real kernels for the tests. `cargo xtask ptx` makes scale.ptx of this file with clang 14.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))

extern "C" {

__device__ float offset[2] = {0.5f, 0.25f};

__global__ void scale(const float *in, float *out, float factor, unsigned count) {
    unsigned i = __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
    if (i < count) out[i] = in[i] * factor + offset[0];
}

// Writes the last word of its dynamic shared memory and reads it back: it needs the bytes it is launched with.
__global__ void touch_shared(unsigned *out, unsigned bytes) {
    extern __shared__ volatile unsigned words[];
    unsigned last = bytes / 4 - 1;
    words[last] = bytes;
    out[0] = words[last];
}

// The same with 8 KiB of its own, which count towards the 48 KiB that need no opting in.
__global__ void touch_shared_beside_own(unsigned *out, unsigned bytes) {
    extern __shared__ volatile unsigned words[];
    __shared__ volatile unsigned own[2048];
    own[2047] = 1;
    unsigned last = bytes / 4 - 1;
    words[last] = bytes;
    out[0] = words[last] + own[2047];
}
}
