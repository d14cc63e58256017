//! How files spell what tokens stand for: bytes as characters, or text with U+2581 for spaces and `<0xHH>` for bytes.

use std::ops::Range;

use super::merge::NONE;
use super::pieces::Pieces;
use super::pretokenize::Spelling;
use super::vocab::Token;

/// U+2581, which stands for a space.
pub(crate) const SPACE: &[u8] = "\u{2581}".as_bytes();

/// The byte that a character of the byte alphabet stands for. Printable bytes of Latin-1 stand for themselves, the other
/// 68 in ascending order are U+0100 and up.
fn byte_of(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// How bytes are spelled in files of byte-pair encodings.
#[cfg(test)]
pub(crate) fn spelled(bytes: &[u8]) -> String {
    let character = |&byte: &u8| ('\0'..='\u{143}').find(|&c| byte_of(c) == Some(byte));
    bytes.iter().filter_map(character).collect()
}

/// What a text spells. Where it spells nothing, because characters in it belong to no alphabet, says `false`.
pub(crate) fn read(text: &[u8], spelling: Spelling, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    match (spelling, std::str::from_utf8(text)) {
        (Spelling::Plain { .. } | Spelling::Verbatim, _) => bytes.extend_from_slice(text),
        (Spelling::Escaped, _) => unescape(text, bytes),
        (Spelling::Bytes, Err(_)) => return false,
        (Spelling::Bytes, Ok(text)) => {
            for c in text.chars() {
                let Some(byte) = byte_of(c) else { return false };
                bytes.push(byte);
            }
        }
    }
    true
}

/// What a text spells, where characters that belong to no alphabet stand for themselves.
pub(crate) fn read_leniently(text: &[u8], bytes: &mut Vec<u8>) {
    bytes.clear();
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte_of(c) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes.extend_from_slice(chunk.invalid());
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The tokens that stand for single bytes: `<0xHH>`, or else the byte itself.
pub(crate) fn byte_tokens(texts: &Pieces) -> [Token; 256] {
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        let named = texts.find(format!("<0x{byte:02X}>").as_bytes());
        named.or_else(|| texts.find(&[byte])).unwrap_or(NONE)
    })
}

/// Writes U+2581 for every space.
pub(crate) fn escape_spaces(text: &[u8], escaped: &mut Vec<u8>) {
    escaped.clear();
    append_escaped(text, escaped);
}

pub(crate) fn append_escaped(text: &[u8], escaped: &mut Vec<u8>) {
    escaped.reserve(text.len());
    for &byte in text {
        match byte {
            b' ' => escaped.extend_from_slice(SPACE),
            byte => escaped.push(byte),
        }
    }
}

/// Writes a space for every U+2581.
pub(crate) fn unescape_spaces(text: &[u8], unescaped: &mut Vec<u8>) {
    unescaped.clear();
    let mut rest = text;
    while let Some((&first, others)) = rest.split_first() {
        match rest.strip_prefix(SPACE) {
            Some(others) => {
                unescaped.push(b' ');
                rest = others;
            }
            None => {
                unescaped.push(first);
                rest = others;
            }
        }
    }
}

/// What a text stands for that Python has written with escapes: `\t`, `\n`, `\r`, `\x00`; any other character behind a backslash
/// stands for itself.
pub(crate) fn unescape(text: &[u8], bytes: &mut Vec<u8>) {
    bytes.clear();
    let mut rest = text;
    while let Some((&first, others)) = rest.split_first() {
        rest = others;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let Some((&kind, others)) = rest.split_first() else { return };
        rest = others;
        match (kind, others.split_first_chunk::<2>()) {
            (b't', _) => bytes.push(b'\t'),
            (b'n', _) => bytes.push(b'\n'),
            (b'r', _) => bytes.push(b'\r'),
            (b'x', Some((digits, others))) => {
                let digits =
                    std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.extend(digits);
                rest = others;
            }
            (b'x', None) => return,
            (other, _) => bytes.push(other),
        }
    }
}

/// Hands over characters as ranges; a byte that is no UTF-8 is one of its own.
pub(crate) fn characters(text: &[u8], mut each: impl FnMut(Range<usize>)) {
    let mut start = 0;
    let mut next = |len: usize| {
        each(start..start + len);
        start += len;
    };
    for chunk in text.utf8_chunks() {
        chunk.valid().chars().for_each(|c| next(c.len_utf8()));
        chunk.invalid().iter().for_each(|_| next(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_a_character_for_every_byte() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    #[test]
    fn byte_tokens_are_read() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        for other in ["<0x0>", "<0x+A>", "<0x0A", "0x0A", "<0x100>"] {
            assert_eq!(byte_token(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn escapes_are_read() {
        let mut bytes = Vec::new();
        unescape(br"a\tb\n\r\\\'\xff\x0a\x4", &mut bytes);
        assert_eq!(bytes, b"a\tb\n\r\\'\xff\n");
    }

    #[test]
    fn spaces_come_back() {
        let (mut escaped, mut back) = (Vec::new(), Vec::new());
        escape_spaces(b" a b\xe2\x96", &mut escaped);
        assert_eq!(escaped, "▁a▁b".bytes().chain(*b"\xe2\x96").collect::<Vec<u8>>());
        unescape_spaces(&escaped, &mut back);
        assert_eq!(back, b" a b\xe2\x96");
    }
}
