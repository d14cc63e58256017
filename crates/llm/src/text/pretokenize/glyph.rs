//! A character together with what pre-tokenizers ask about it, in four bytes.
//!
//! Invariant: every byte string becomes glyphs, and the byte lengths of the glyphs add up to its own. A byte that is no
//! UTF-8 is a glyph of its own which behaves like U+FFFD.

use unicode_general_category::{GeneralCategory, get_general_category};

const CODE: u32 = (1 << 21) - 1;
/// Bytes that are no UTF-8 lie above all code points.
const FIRST_BYTE: u32 = 0x11_0000;

const LETTER: u32 = 1 << 21;
const NUMBER: u32 = 1 << 22;
const MARK: u32 = 1 << 23;
const PUNCTUATION: u32 = 1 << 24;
const SYMBOL: u32 = 1 << 25;
const SPACE: u32 = 1 << 26;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Glyph(u32);

impl Glyph {
    pub(crate) fn of(c: char) -> Glyph {
        match ASCII.get(c as usize) {
            Some(&glyph) => glyph,
            None => Glyph(c as u32 | kind(c) | if is_space(c as u32) { SPACE } else { 0 }),
        }
    }

    fn of_byte(byte: u8) -> Glyph {
        Glyph((FIRST_BYTE + u32::from(byte)) | SYMBOL)
    }

    /// The code point, or something larger for a byte that is no UTF-8.
    pub(crate) fn code(self) -> u32 {
        self.0 & CODE
    }

    /// How many bytes of the text it stands for.
    pub(crate) fn len(self) -> usize {
        match self.code() {
            0..0x80 => 1,
            0x80..0x800 => 2,
            0x800..0x1_0000 => 3,
            0x1_0000..FIRST_BYTE => 4,
            _ => 1,
        }
    }

    pub(crate) fn is(self, c: char) -> bool {
        self.code() == c as u32
    }

    pub(crate) fn is_letter(self) -> bool {
        self.0 & LETTER != 0
    }

    pub(crate) fn is_number(self) -> bool {
        self.0 & NUMBER != 0
    }

    pub(crate) fn is_mark(self) -> bool {
        self.0 & MARK != 0
    }

    pub(crate) fn is_punctuation(self) -> bool {
        self.0 & PUNCTUATION != 0
    }

    pub(crate) fn is_symbol(self) -> bool {
        self.0 & SYMBOL != 0
    }

    pub(crate) fn is_space(self) -> bool {
        self.0 & SPACE != 0
    }

    pub(crate) fn is_newline(self) -> bool {
        self.is('\r') || self.is('\n')
    }

    /// An ASCII character for which `test` holds.
    pub(crate) fn is_ascii_and(self, test: impl Fn(&u8) -> bool) -> bool {
        u8::try_from(self.code()).is_ok_and(|byte| byte.is_ascii() && test(&byte))
    }

    pub(crate) fn is_ascii(self) -> bool {
        self.code() < 0x80
    }
}

/// Turns text into glyphs.
pub(crate) fn read(text: &[u8], glyphs: &mut Vec<Glyph>) {
    glyphs.clear();
    glyphs.reserve(text.len());
    for chunk in text.utf8_chunks() {
        glyphs.extend(chunk.valid().chars().map(Glyph::of));
        glyphs.extend(chunk.invalid().iter().copied().map(Glyph::of_byte));
    }
}

fn kind(c: char) -> u32 {
    use GeneralCategory as C;
    if is_newer(c as u32) {
        return 0;
    }
    match get_general_category(c) {
        C::UppercaseLetter | C::LowercaseLetter | C::TitlecaseLetter | C::ModifierLetter | C::OtherLetter => {
            LETTER
        }
        C::DecimalNumber | C::LetterNumber | C::OtherNumber => NUMBER,
        C::NonspacingMark | C::SpacingMark | C::EnclosingMark => MARK,
        C::ConnectorPunctuation
        | C::DashPunctuation
        | C::OpenPunctuation
        | C::ClosePunctuation
        | C::InitialPunctuation
        | C::FinalPunctuation
        | C::OtherPunctuation => PUNCTUATION,
        C::MathSymbol | C::CurrencySymbol | C::ModifierSymbol | C::OtherSymbol => SYMBOL,
        _ => 0,
    }
}

/// Whether a character came with Unicode 16. The reference's tables are of 15.1, where it is nothing yet.
const fn is_newer(code: u32) -> bool {
    matches!(
        code,
        0x897
            | 0x1b4e..=0x1b4f
            | 0x1b7f
            | 0x1c89..=0x1c8a
            | 0x2427..=0x2429
            | 0x31e4..=0x31e5
            | 0xa7cb..=0xa7cd
            | 0xa7da..=0xa7dc
            | 0x1_05c0..=0x1_05f3
            | 0x1_0d40..=0x1_0d8f
            | 0x1_0ec2..=0x1_0ec4
            | 0x1_0efc
            | 0x1_1380..=0x1_13e2
            | 0x1_16d0..=0x1_16e3
            | 0x1_1bc0..=0x1_1bf9
            | 0x1_1f5a
            | 0x1_3460..=0x1_43fa
            | 0x1_6100..=0x1_6139
            | 0x1_6d40..=0x1_6d79
            | 0x1_8cff
            | 0x1_cc00..=0x1_ceb3
            | 0x1_e5d0..=0x1_e5ff
            | 0x1_f8b2..=0x1_f8bb
            | 0x1_f8c0..=0x1_f8c1
            | 0x1_fa89
            | 0x1_fa8f
            | 0x1_fabe
            | 0x1_fac6
            | 0x1_fadc
            | 0x1_fadf
            | 0x1_fae9
            | 0x1_fbcb..=0x1_fbef
    )
}

/// Unicode's White_Space.
const fn is_space(code: u32) -> bool {
    matches!(
        code,
        0x09..=0x0d | 0x20 | 0x85 | 0xa0 | 0x1680 | 0x2000..=0x200a | 0x2028 | 0x2029 | 0x202f | 0x205f | 0x3000
    )
}

static ASCII: [Glyph; 128] = {
    let mut glyphs = [Glyph(0); 128];
    let mut code = 0;
    while code < 128 {
        let byte = code as u8;
        let kind = if byte.is_ascii_alphabetic() {
            LETTER
        } else if byte.is_ascii_digit() {
            NUMBER
        } else if matches!(byte, b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~') {
            SYMBOL
        } else if byte.is_ascii_punctuation() {
            PUNCTUATION
        } else {
            0
        };
        glyphs[code as usize] = Glyph(code | kind | if is_space(code) { SPACE } else { 0 });
        code += 1;
    }
    glyphs
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_agrees_with_unicode() {
        for c in '\0'..='\x7f' {
            assert_eq!(Glyph::of(c).0 & !SPACE, c as u32 | kind(c), "{c:?}");
            assert_eq!(Glyph::of(c).is_space(), c.is_whitespace(), "{c:?}");
        }
    }

    #[test]
    fn white_space_is_what_unicode_says() {
        for c in '\0'..=char::MAX {
            assert_eq!(Glyph::of(c).is_space(), c.is_whitespace(), "{c:?}");
            assert_eq!(Glyph::of(c).len(), c.len_utf8());
        }
    }

    #[test]
    fn lengths_add_up() {
        let mut glyphs = Vec::new();
        for text in [&b"a\xff\xc3\xa9\xe2\x82"[..], b"\xf4\x90\x80\x80", b"\xed\xa0\x80", "😀x".as_bytes()]
        {
            read(text, &mut glyphs);
            assert_eq!(glyphs.iter().map(|glyph| glyph.len()).sum::<usize>(), text.len());
        }
    }
}
