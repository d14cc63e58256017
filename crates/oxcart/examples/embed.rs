//! How alike texts are: `cargo run --release -p oxcart --example embed -- MODEL TEXT TEXT…`
#![allow(clippy::print_stdout, reason = "an example is there to be looked at")]

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("which model? One that makes embeddings, such as nomic-bert")?;
    let texts: Vec<String> = arguments.collect();
    let mut session = oxcart::Loader::new(model).load_encoder()?;
    let vectors = texts.iter().map(|text| session.embed(text)).collect::<Result<Vec<_>, _>>()?;
    for (text, vector) in texts.iter().zip(&vectors) {
        let alike: f32 = vector.iter().zip(&vectors[0]).map(|(a, b)| a * b).sum();
        println!("{alike:6.3}  {text}");
    }
    Ok(())
}
