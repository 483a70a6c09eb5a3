// SPDX-License-Identifier: Apache-2.0

//! The bytes of a trace file and its numbered lines.
//!
//! Compression is told by its magic number, not by the name of the file, for every format. A UTF-8 byte
//! order mark is dropped, line ends may be LF or CRLF, and blank lines count but hold no row (field
//! report BR-15).

use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const UTF8_BOM: &[u8] = &[0xef, 0xbb, 0xbf];

/// The file's content, decompressed, without a byte order mark.
pub(crate) fn load(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = std::fs::read(path)?;
    if bytes.starts_with(GZIP) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
        bytes = plain;
    }
    if bytes.starts_with(UTF8_BOM) {
        bytes.drain(..UTF8_BOM.len());
    }
    Ok(bytes)
}

/// Lines that are not blank, with their 1-based number and without their end.
pub(crate) fn lines(content: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (1..)
        .zip(content.split(|byte| *byte == b'\n'))
        .map(|(number, line)| (number, line.trim_ascii()))
        .filter(|(_, line)| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn blank_lines_are_counted_but_not_returned() {
        let found: Vec<_> = lines(b"a\r\n\r\nb\n").collect();
        assert_eq!(found, [(1, b"a".as_slice()), (3, b"b".as_slice())]);
    }

    #[test]
    fn a_compressed_file_with_a_byte_order_mark_is_read_whatever_its_name() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut gz = flate2::write::GzEncoder::new(&mut file, flate2::Compression::fast());
        gz.write_all(b"\xef\xbb\xbfrow").unwrap();
        gz.finish().unwrap();
        assert_eq!(load(file.path()).unwrap(), b"row");
    }
}
