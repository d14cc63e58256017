//! A crowd of hostile peers, each with an address of its own and each trying one thing after another that once held a worker up:
//! nodes whose work is not in their result, commands of a client that leaves, pools that one peer empties, tensors in two places,
//! announcements, graphs that are hard to plan, and what Oxcart has beside ggml's protocol: introductions, pushes, contents and pulses.

use std::time::Duration;

use oxcart::backend::Content;
use oxcart::rpc::wire::{
    Address, Command, Dialect, Expect, Meet, OpCode, PULSE_MARK, PulseMessage, Take, TensorRecord, Transfer,
};

use super::Random;
use super::attack::Attacker;

/// One attack from an address of this machine, from connecting to leaving.
pub(crate) fn attack(address: &str, host: u8, random: &mut Random) {
    const ATTACKS: [fn(&mut Attacker, &mut Random) -> Option<()>; 14] = [
        heavy_node,
        heavy_node,
        clear_and_leave,
        hoard,
        chores,
        small_chores,
        alias,
        announce,
        many_buffers,
        hold_places,
        meet,
        push,
        take,
        beat,
    ];
    let Some(mut attacker) = Attacker::connect(address, [127, 0, 1, host], Dialect::own()) else {
        return;
    };
    // Whatever the worker does to it, the attacker does not mind.
    if attacker.greet().is_some() {
        let _ = ATTACKS[random.below(ATTACKS.len())](&mut attacker, random);
    }
}

fn pause(random: &mut Random, milliseconds: usize) {
    std::thread::sleep(Duration::from_millis(random.below(milliseconds) as u64));
}

/// A node whose work is in its parameters or in tensors that lie all but in the same place; then leaves or waits.
fn heavy_node(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    if random.below(3) == 0 {
        attacker.start_long_product()?;
    } else {
        let place = attacker.alloc(16 << 20)?;
        let (handle, base) = place;
        let result = (handle, base + (8 << 20));
        let [source, node] = match random.below(3) {
            0 => {
                // Every window is the whole row.
                let source = attacker.record(1, [1 << 17, 1, 1, 1], place);
                let mut node = attacker.node(OpCode::Pool1d, 2, [(1 << 17) + 1, 1, 1, 1], result, &[1])?;
                for (to, value) in node.params.iter_mut().zip([0, 1 << 17, 1, 1 << 16]) {
                    *to = value.into();
                }
                [source, node]
            }
            1 => {
                let source = attacker.record(1, [512, 512, 1, 1], place);
                let mut node = attacker.node(OpCode::Pool2d, 2, [513, 513, 1, 1], result, &[1])?;
                for (to, value) in node.params.iter_mut().zip([1, 512, 512, 1, 1, 256, 256]) {
                    *to = value.into();
                }
                [source, node]
            }
            _ => {
                // All rows but one are the same memory.
                let mut source = attacker.record(1, [1 << 12, 1 << 17, 1, 1], place);
                source.nb = [4_u32, 0, 0, 0].map(Into::into);
                let node = attacker.node(OpCode::SumRows, 2, [1, 1 << 17, 1, 1], result, &[1])?;
                [source, node]
            }
        };
        let body = attacker.graph(&[2], &[source, node]);
        attacker.send(Command::GraphCompute, &body)?;
    }
    pause(random, 500);
    None
}

/// Much to clear, and no one left who asked for it.
fn clear_and_leave(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let (handle, _) = attacker.alloc(256 << 20)?;
    let body = [&handle.to_le_bytes()[..], &[1]].concat();
    for _ in 0..200 {
        attacker.send(Command::BufferClear, &body)?;
    }
    pause(random, 100);
    None
}

/// A stored graph, and half of a message, that stay.
fn hoard(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let place = attacker.alloc(4096)?;
    let ids: Vec<u64> = (2..6002).collect();
    let mut tensors = vec![attacker.record(1, [1, 1, 1, 1], place)];
    for &id in &ids {
        tensors.push(attacker.node(OpCode::Add, id, [1, 1, 1, 1], (place.0, place.1 + 64), &[1, 1])?);
    }
    let body = attacker.graph(&ids, &tensors);
    attacker.send(Command::GraphCompute, &body)?;
    attacker.begin(Command::GraphCompute, body.len() as u64, body.get(..body.len() / 2)?)?;
    pause(random, 3000);
    None
}

/// Commands that take time and are not graphs.
fn chores(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let (handle, base) = attacker.alloc(32 << 20)?;
    let whole = attacker.record(1, [4 << 20, 1, 1, 1], (handle, base));
    let other = attacker.record(2, [4 << 20, 1, 1, 1], (handle, base + (16 << 20)));
    let copy = [attacker.bytes(&whole), attacker.bytes(&other)].concat();
    let set = [&attacker.bytes(&whole)[..], &[0; 8], &(16_u64 << 20).to_le_bytes(), &[7]].concat();
    for _ in 0..random.below(60) {
        attacker.send(Command::MemsetTensor, &set)?;
        attacker.ask(Command::CopyTensor, &copy)?;
    }
    None
}

/// As many commands as go on the wire, each too small to wait for a turn.
fn small_chores(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let (handle, _) = attacker.alloc(64 << 10)?;
    let body = [&handle.to_le_bytes()[..], &[1]].concat();
    for _ in 0..random.below(20_000) {
        attacker.send(Command::BufferClear, &body)?;
    }
    attacker.ask(Command::GetDeviceMemory, &[0; 4])?;
    None
}

/// Values, rows and target are one tensor.
fn alias(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let (handle, base) = attacker.alloc(1 << 20)?;
    let values = attacker.record(1, [256, 16, 1, 1], (handle, base));
    let mut rows = attacker.record(3, [16, 1, 1, 1], (handle, base + (512 << 10)));
    rows.dtype = 27.into(); // I64
    rows.nb = [8_u32, 128, 128, 128].map(Into::into);
    let node = attacker.node(OpCode::SetRows, 2, [256, 16, 1, 1], (handle, base), &[1, 3, 1])?;
    let body = attacker.graph(&[2], &[values, rows, node]);
    attacker.send(Command::GraphCompute, &body)?;
    attacker.ask(Command::GetDeviceMemory, &[0; 4])?;
    pause(random, 50);
    None
}

/// 300 bytes that promise a large tensor.
fn announce(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let (handle, base) = attacker.alloc(64 << 20)?;
    let record = attacker.record(1, [16 << 20, 1, 1, 1], (handle, base));
    let head = [&attacker.bytes(&record)[..], &[1], &[0; 8]].concat();
    attacker.begin(Command::SetTensor, head.len() as u64 + (64 << 20), &head)?;
    pause(random, 2000);
    None
}

/// A graph with as many buffers as nodes.
fn many_buffers(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let mut tensors: Vec<TensorRecord> = Vec::new();
    let mut ids = Vec::new();
    for id in 0..1000_u64 {
        let place = attacker.alloc(64)?;
        tensors.push(attacker.record(1 + 2 * id, [4, 1, 1, 1], place));
        let source = 1 + 2 * random.below(1 + id as usize) as u64;
        tensors.push(attacker.node(OpCode::Add, 2 + 2 * id, [4, 1, 1, 1], place, &[1 + 2 * id, source])?);
        ids.push(2 + 2 * id);
    }
    let body = attacker.graph(&ids, &tensors);
    for _ in 0..10 {
        attacker.send(Command::GraphCompute, &body)?;
    }
    attacker.ask(Command::GetDeviceMemory, &[0; 4])?;
    None
}

/// Places that nothing is done with.
fn hold_places(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let mut held = Vec::new();
    for _ in 0..24 {
        let mut another = attacker.again()?;
        another.greet()?;
        held.push(another);
    }
    pause(random, 1500);
    None
}

/// Introduces the worker to itself; says whether they have met.
fn introduce(attacker: &mut Attacker, random: &mut Random, number: u32, port: u16) -> Option<bool> {
    let secret = std::array::from_fn(|_| random.below(256) as u8);
    attacker.ask(Command::Expect, &Expect { number, secret, key: None }.encode())?;
    let address = Address::new((attacker.worker()?.ip(), port).into())?;
    let met = attacker.ask(Command::Meet, &Meet { number, address, secret, key: None }.encode())?;
    Some(met == [1])
}

/// Workers to meet, at places where there are none, or one that is never asked for anything.
fn meet(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    for number in 0..random.below(16) as u32 {
        let port = if random.below(4) == 0 { 1 } else { attacker.worker()?.port() };
        introduce(attacker, random, number, port)?;
    }
    pause(random, 500);
    None
}

/// Much that is pushed and never taken.
fn push(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let place = attacker.alloc(16 << 20)?;
    let record = attacker.record(1, [4 << 20, 1, 1, 1], place);
    let port = attacker.worker()?.port();
    if introduce(attacker, random, 0, port)? {
        for ticket in 0..16 {
            attacker.send(Command::Push, &Transfer { number: 0, ticket, record }.encode())?;
        }
    }
    pause(random, 1500);
    None
}

/// Contents that the worker does not have, or has under another name.
fn take(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let place = attacker.alloc(64 << 20)?;
    let record = attacker.record(1, [16 << 20, 1, 1, 1], place);
    for number in 0..random.below(2000) as u64 {
        let content = Content { hash: number, digest: [number as u8; 32] };
        attacker.send(Command::Take, &Take { record, content }.encode())?;
    }
    attacker.ask(Command::GetDeviceMemory, &[0; 4])?;
    None
}

/// Heartbeats in floods whose echoes are not read, and pulses of no session.
fn beat(attacker: &mut Attacker, random: &mut Random) -> Option<()> {
    let token = attacker.ask(Command::Pulse, &[])?.try_into().ok()?;
    let mut pulses = Vec::new();
    for token in [token, token, [random.below(256) as u8; 16]] {
        let mut pulse = attacker.again()?;
        pulse.pour(&[&PULSE_MARK[..], &PulseMessage::Begin { token }.encode()].concat())?;
        pulses.push(pulse);
    }
    let beats: Vec<u8> = (0..4096).flat_map(|number| PulseMessage::Beat { number }.encode()).collect();
    for _ in 0..random.below(64) {
        pulses.first_mut()?.pour(&beats)?;
    }
    pause(random, 500);
    None
}
