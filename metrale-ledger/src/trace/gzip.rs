// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a gzip file holds: its members, one behind the other.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The two bytes that each member begins with.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads all members. Zeros behind one are padding, as gzip takes them; anything else there is an error that says so.
pub(super) struct Members<R> {
    /// None after the last.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    pub(super) fn new(source: R) -> Self {
        Self { member: Some(GzDecoder::new(source)) }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            self.member =
                self.member.take().and_then(|member| next(member.into_inner()).transpose()).transpose()?;
        }
        Ok(0)
    }
}

/// The member that comes next.
fn next<R: BufRead>(mut source: R) -> io::Result<Option<GzDecoder<R>>> {
    loop {
        let ahead = match source.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            ahead => ahead?,
        };
        let Some(&first) = ahead.first() else { return Ok(None) };
        match ahead.iter().position(|&byte| byte != 0) {
            Some(0) if first == MAGIC[0] => return Ok(Some(GzDecoder::new(source))),
            Some(0) => {
                let words = "what follows the compressed data is no gzip data";
                return Err(io::Error::new(io::ErrorKind::InvalidData, words));
            }
            zeros => {
                let zeros = zeros.unwrap_or(ahead.len());
                source.consume(zeros);
            }
        }
    }
}
