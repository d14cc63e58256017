//! Bytes as text that survives being copied, pasted, wrapped and read aloud: digits and letters without i, l, o and u.

const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Five bits a letter; what is missing at the end is zero.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut bits, mut held) = (0_u32, 0);
    for &byte in bytes {
        bits = bits << 8 | u32::from(byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(letter(bits >> held));
        }
    }
    if held > 0 {
        text.push(letter(bits << (5 - held)));
    }
    text
}

fn letter(bits: u32) -> char {
    LETTERS.get(bits as usize & 31).copied().map_or('0', char::from)
}

/// The bytes of a text. Case, spaces and hyphens do not matter, nor whether a one is written as a letter. Every text that is read
/// stands for other bytes.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut bits, mut held) = (0_u32, 0);
    for c in text.chars().filter(|c| !c.is_whitespace() && *c != '-') {
        let c = match c.to_ascii_lowercase() {
            'i' | 'l' => '1',
            'o' => '0',
            c => c,
        };
        let value = LETTERS.iter().position(|known| char::from(*known) == c)?;
        bits = bits << 5 | u32::try_from(value).ok()?;
        held += 5;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
        bits &= 0xfff;
    }
    let is_whole = held < 5 && bits & ((1 << held) - 1) == 0;
    is_whole.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for len in 0..100 {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37 + len * 11) as u8).collect();
            let text = encode(&bytes);
            assert_eq!(decode(&text).as_deref(), Some(&bytes[..]), "{text}");
            let spoken = format!(" {}-\n", text.to_uppercase().replace('0', "O").replace('1', "I"));
            assert_eq!(decode(&spoken), Some(bytes));
        }
    }

    #[test]
    fn other_texts_are_none() {
        // A letter that is none, one too many, bits that are lost.
        for text in ["u0", "é0", "0", "000", "01", "zz"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
