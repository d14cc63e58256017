use super::*;

const UNK: Token = 0;

fn ugm(tokens: &[(&str, f32)], spaces: UgmSpaces) -> Ugm {
    let all = tokens.iter().enumerate().map(|(token, &(text, score))| {
        let own = if token == 0 { Attributes::UNKNOWN } else { Attributes::NORMAL };
        (text.as_bytes(), score, own)
    });
    Ugm::new(all, Some(UNK), None, spaces)
}

#[track_caller]
fn check(ugm: &Ugm, text: &str, expected: &[Token]) {
    let mut tokens = vec![99];
    assert!(ugm.encode(text.as_bytes(), usize::MAX, &mut tokens));
    assert_eq!(tokens.strip_prefix(&[99]), Some(expected), "{text:?}");
}

#[test]
fn the_best_sum_wins_and_unknown_ones_are_one() {
    let ugm = ugm(
        &[("<unk>", 0.0), ("a", -3.0), ("b", -3.0), ("ab", -5.0), ("abc", -20.0), ("c", -1.0), ("▁", -2.0)],
        UgmSpaces::default(),
    );
    check(&ugm, "ab", &[3]);
    check(&ugm, "abc", &[3, 5]);
    check(&ugm, "ba", &[2, 1]);
    check(&ugm, "axyéb", &[1, UNK, 2]);
    check(&ugm, "a  b", &[1, 6, 6, 2]);
    check(&ugm, "", &[]);
}

#[test]
fn spaces_are_added_and_merged() {
    let tokens = [("<unk>", 0.0), ("a", -3.0), ("▁", -2.0)];
    check(&ugm(&tokens, UgmSpaces { prefix: true, merge: false }), "a a ", &[2, 1, 2, 1, 2]);
    check(&ugm(&tokens, UgmSpaces { prefix: true, merge: true }), "  a   a ", &[2, 1, 2, 1]);
    check(&ugm(&tokens, UgmSpaces { prefix: true, merge: true }), "   ", &[]);
}

/// A tree with the single string `x`, which becomes `yz`.
fn table() -> Vec<u8> {
    let mut words = vec![0_u32; 512];
    // The root's children are at 256; that of 'x' says that a string ends there and has its own children at 384.
    words[0] = 256 << 10;
    let x = 256 ^ u32::from(b'x');
    words[x as usize] = (x ^ 384) << 10 | 1 << 8 | u32::from(b'x');
    words[384] = 1 << 31 | 2;
    let mut bytes = (words.len() as u32 * 4).to_le_bytes().to_vec();
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(b"q\0yz\0");
    bytes
}

#[test]
fn characters_are_replaced() {
    let map = CharMap::new(&table()).unwrap();
    assert_eq!(map.longest(b"xx"), Some((&b"yz"[..], 1)));
    assert_eq!(map.longest(b"y"), None);
    assert_eq!(map.longest(b"\0"), None);
    assert_eq!(map.longest(b""), None);
}

/// How a token of the model's makers begins is not normalized, and what comes after it is.
#[test]
fn beginnings_of_defined_tokens_are_kept() {
    let tokens =
        [("<unk>", 0.0), ("yz", -3.0), ("x", -3.0), ("xa", 0.0), ("xb", 0.0), ("z", -4.0), ("y", -4.0)];
    let all = tokens.iter().enumerate().map(|(token, &(text, score))| {
        let own = match token {
            0 => Attributes::UNKNOWN,
            3 | 4 => Attributes::USER_DEFINED,
            _ => Attributes::NORMAL,
        };
        (text.as_bytes(), score, own)
    });
    let map = || Some(CharMap::new(&table()).unwrap());
    let with = Ugm::new(all.clone(), Some(UNK), map(), UgmSpaces::default());
    check(&with, "x", &[2]);
    check(&with, "xzx", &[2, 5, 2]);
    check(&with, "xa", &[3]);
    for (text, len) in [("", 0), ("y", 0), ("x", 1), ("xc", 1), ("xab", 2), ("xb", 2)] {
        assert_eq!(with.defined_len(text.as_bytes()), len, "{text}");
    }
    let without = all.filter(|(_, _, own)| !own.intersects(Attributes::USER_DEFINED));
    check(&Ugm::new(without, Some(UNK), map(), UgmSpaces::default()), "x", &[1]);
}

#[test]
fn no_table_makes_a_look_up_fail() {
    let whole = table();
    for cut in [0, 3, 4, 100, whole.len() - 1] {
        assert!(CharMap::new(&whole[..cut]).is_err(), "{cut}");
    }
    // Any words at all: looks end, and stay inside.
    for seed in 0..64_u32 {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut bytes = 256_u32.to_le_bytes().to_vec();
        for _ in 0..300 {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            bytes.push(state as u8);
        }
        bytes.push(0);
        let map = CharMap::new(&bytes).unwrap();
        for byte in 0..=255 {
            let text = [byte; 20];
            assert!(map.longest(&text).is_none_or(|(_, read)| read <= text.len()));
        }
    }
}
