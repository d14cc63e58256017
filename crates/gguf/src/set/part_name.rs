//! Names of the files of a split model: `name-00001-of-00003.gguf` and so on.
//!
//! Invariant: what [`PartName::of`] gives is shown as it was read, and its number is one of its count.

use std::fmt;

/// The name of one file of a split model, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName<'n> {
    /// What the names of all files of the model begin with, folders included.
    pub model: &'n str,
    /// Which file it is; the first is 1.
    pub number: u32,
    /// How many there are.
    pub count: u32,
}

impl<'n> PartName<'n> {
    /// Reads a file name, with or without folders; none if it is not that of a part.
    pub fn of(path: &'n str) -> Option<PartName<'n>> {
        PartName::claimed_by(path).filter(|part| (1..=part.count).contains(&part.number))
    }

    /// The same of a name whose number may be one that cannot be.
    pub(super) fn claimed_by(path: &'n str) -> Option<PartName<'n>> {
        let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (model, number) = rest.rsplit_once('-')?;
        Some(PartName { model, number: five_digits(number)?, count: five_digits(count)? })
    }

    /// The names of all files of the model, in order.
    pub fn all(self) -> impl Iterator<Item = String> {
        (1..=self.count).map(move |number| PartName { number, ..self }.to_string())
    }
}

impl fmt::Display for PartName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:05}-of-{:05}.gguf", self.model, self.number, self.count)
    }
}

fn five_digits(text: &str) -> Option<u32> {
    let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let part = PartName::of("a/b-00002-of-00003.gguf").unwrap();
        assert_eq!(part, PartName { model: "a/b", number: 2, count: 3 });
        assert_eq!(part.to_string(), "a/b-00002-of-00003.gguf");
        let all: Vec<String> = part.all().collect();
        assert_eq!(all, ["a/b-00001-of-00003.gguf", "a/b-00002-of-00003.gguf", "a/b-00003-of-00003.gguf"]);
        for other in [
            "b.gguf",
            "b-2-of-3.gguf",
            "best-of-00003.gguf",
            "b-00004-of-00003.gguf",
            "b-00000-of-00003.gguf",
            "b-+0001-of-00003.gguf",
            "b-0000x-of-00003.gguf",
            "b-00001-of-00002.bin",
        ] {
            assert_eq!(PartName::of(other), None, "{other}");
        }
    }
}
