use super::*;

const LIMIT: Duration = Duration::from_millis(2000);
/// While something waits for the worker.
const TICK: PulseEvent = PulseEvent::Tick { is_waited_for: true };
/// While nothing does.
const QUIET: PulseEvent = PulseEvent::Tick { is_waited_for: false };

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        let most = u64::try_from(limit.as_micros()).unwrap().max(1);
        Duration::from_micros(self.next() % most)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}

/// How many seeds are tried: `OXCART_PULSE_SEEDS`.
fn seeds() -> u64 {
    std::env::var("OXCART_PULSE_SEEDS").map_or(2000, |count| count.parse().unwrap())
}

/// A client, a worker and a network on one virtual clock. What is said arrives in order.
struct World {
    random: Random,
    pulse: Pulse,
    now: Duration,
    /// When each echo arrives at the client.
    echoes: VecDeque<(u64, Duration)>,
    /// From when on the worker says nothing back.
    frozen_at: Option<Duration>,
    /// The longest that a beat's echo takes.
    longest: Duration,
    beats: u64,
}

impl World {
    fn new(seed: u64, longest: Duration) -> World {
        let (now, random) = (ms(1000 + seed % 77), Random(seed));
        World {
            random,
            pulse: Pulse::new(LIMIT, now),
            now,
            echoes: VecDeque::new(),
            frozen_at: None,
            longest,
            beats: 0,
        }
    }

    /// Some time goes by, and the client looks: at what has arrived, then at the clock.
    fn step(&mut self, time: Duration) -> Option<PulseAction> {
        self.now += time;
        while self.echoes.front().is_some_and(|(_, arrives)| *arrives <= self.now) {
            let (number, _) = self.echoes.pop_front().unwrap();
            assert_eq!(self.pulse.handle(PulseEvent::Echo(number), self.now), None);
        }
        let action = self.pulse.handle(TICK, self.now);
        if let Some(PulseAction::Beat(number)) = action {
            self.beats += 1;
            // It gets there, is said back perhaps after a pause of the worker, and comes back.
            let takes = match self.random.one_in(4) {
                true => self.random.below(self.longest),
                false => self.random.below(ms(40).min(self.longest)),
            };
            let (there, back) = (self.now + takes / 2, self.now + takes);
            let after_others = self.echoes.back().map_or(Duration::ZERO, |(_, arrives)| *arrives);
            if self.frozen_at.is_none_or(|frozen| there < frozen) {
                self.echoes.push_back((number, back.max(after_others)));
            }
            return None;
        }
        action
    }

    /// A tick, now and then late as on a busy machine.
    fn tick(&mut self) -> Duration {
        let late = match self.random.one_in(8) {
            true => self.random.below(LIMIT / 4),
            false => self.random.below(ms(5)),
        };
        Pulse::tick(LIMIT) + late
    }
}

/// However late the client looks, and however often it is stopped itself.
#[test]
fn a_worker_that_answers_within_the_limit_is_not_lost() {
    for seed in 0..seeds() {
        let mut world = World::new(seed, LIMIT);
        for _ in 0..500 {
            let time = match world.random.one_in(50) {
                // Asleep, perhaps for long: what arrives meanwhile is old.
                true => LIMIT / 2 + world.random.below(LIMIT * 20),
                false => world.tick(),
            };
            assert_eq!(world.step(time), None, "seed {seed}");
        }
        assert!(world.beats > 100, "seed {seed}: {} beats", world.beats);
    }
}

#[test]
fn a_worker_that_stops_is_lost_in_time() {
    for seed in 0..seeds() {
        let mut world = World::new(seed, LIMIT / 2);
        let frozen = world.now + world.random.below(LIMIT * 5);
        world.frozen_at = Some(frozen);
        let lost = loop {
            let time = world.tick();
            match world.step(time) {
                None => assert!(world.now < frozen + LIMIT * 3, "seed {seed}: it is never lost"),
                Some(action) => {
                    assert_eq!(action, PulseAction::Lost(LIMIT), "seed {seed}");
                    break world.now;
                }
            }
        };
        assert!(lost > frozen, "seed {seed}");
        // Two looks may be late: the one that sends the beat, and the one that misses its echo.
        let late = 2 * (Pulse::tick(LIMIT) + LIMIT / 4);
        assert!(lost <= frozen + LIMIT + Pulse::interval(LIMIT) + late, "seed {seed}: {:?}", lost - frozen);
        assert_eq!(world.step(LIMIT), None, "it is said once");
    }
}

/// A client that looks on time decides within the limit, an interval and a tick; the default limit is two seconds.
#[test]
fn a_client_on_time_decides_on_time() {
    let (tick, interval) = (Pulse::tick(LIMIT), Pulse::interval(LIMIT));
    for stops_after in 0..40 {
        let (mut pulse, mut now, mut answered) = (Pulse::new(LIMIT, ms(0)), ms(0), None);
        let lost = loop {
            match pulse.handle(TICK, now) {
                Some(PulseAction::Beat(number)) if number < stops_after => {
                    pulse.handle(PulseEvent::Echo(number), now);
                    answered = Some(now);
                }
                Some(PulseAction::Beat(_)) | None => {}
                Some(action) => break (action, now),
            }
            now += tick;
        };
        assert_eq!(lost.0, PulseAction::Lost(LIMIT));
        let since = lost.1 - answered.unwrap_or_default();
        assert!(since > LIMIT && since <= LIMIT + interval + tick, "{since:?}");
    }
}

/// A network that holds back what was said before the worker stopped, and lets it through bit by bit, keeps nothing alive.
#[test]
fn bytes_that_were_under_way_keep_no_worker_alive() {
    let (tick, interval) = (Pulse::tick(LIMIT), Pulse::interval(LIMIT));
    let (mut pulse, mut now, mut held) = (Pulse::new(LIMIT, ms(0)), ms(0), VecDeque::new());
    let frozen = interval * 6;
    loop {
        if now > frozen
            && let Some(number) = held.pop_front()
        {
            assert_eq!(pulse.handle(PulseEvent::Echo(number), now), None);
        }
        match pulse.handle(TICK, now) {
            Some(PulseAction::Beat(number)) if now < frozen => held.push_back(number),
            Some(PulseAction::Beat(_)) | None => {}
            Some(action) => {
                assert_eq!(action, PulseAction::Lost(LIMIT));
                break;
            }
        }
        now += tick;
    }
    assert!(held.is_empty() && now <= frozen + LIMIT + interval + tick, "{now:?}");
}

/// Nothing that was sent before the client was stopped counts for or against a worker.
#[test]
fn a_client_that_was_stopped_begins_anew() {
    let mut pulse = Pulse::new(LIMIT, ms(0));
    assert_eq!(pulse.handle(TICK, ms(0)), Some(PulseAction::Beat(0)));
    let awake = ms(3_600_000);
    assert_eq!(pulse.handle(TICK, awake), Some(PulseAction::Beat(1)));
    // What was said back before it slept says nothing of now.
    assert_eq!(pulse.handle(PulseEvent::Echo(0), awake + ms(10)), None);
    let mut now = awake;
    let lost = loop {
        now += Pulse::tick(LIMIT);
        match pulse.handle(TICK, now) {
            None | Some(PulseAction::Beat(_)) => {}
            Some(action) => break action,
        }
    };
    assert_eq!(lost, PulseAction::Lost(WAKING_PATIENCE));
    assert!(now > awake + WAKING_PATIENCE && now <= awake + WAKING_PATIENCE + Pulse::tick(LIMIT), "{now:?}");
}

/// Lets time go by in which nothing is answered, and says what comes of it.
fn silence(pulse: &mut Pulse, now: &mut Duration, tick: PulseEvent, time: Duration) -> Option<PulseAction> {
    let until = *now + time;
    while *now < until {
        *now += Pulse::tick(LIMIT);
        match pulse.handle(tick, *now) {
            None | Some(PulseAction::Beat(_)) => {}
            action => return action,
        }
    }
    None
}

/// A laptop wakes, and its network comes back after some seconds. Once it is there, the limit holds again.
#[test]
fn a_network_may_take_a_while_after_sleep() {
    for (gap, patience) in [(ms(3000), LIMIT), (SLEEP, WAKING_PATIENCE), (ms(3_600_000), WAKING_PATIENCE)] {
        let mut pulse = Pulse::new(LIMIT, ms(0));
        assert_eq!(pulse.handle(TICK, ms(0)), Some(PulseAction::Beat(0)));
        let mut now = gap;
        assert_eq!(pulse.handle(TICK, now), Some(PulseAction::Beat(1)));
        assert_eq!(silence(&mut pulse, &mut now, TICK, patience * 9 / 10), None, "{gap:?}");
        // All at once, as it was sent.
        let last = pulse.next - 1;
        assert_eq!(pulse.handle(PulseEvent::Echo(last), now), None);
        let woken = now;
        assert_eq!(silence(&mut pulse, &mut now, TICK, LIMIT * 3), Some(PulseAction::Lost(LIMIT)), "{gap:?}");
        assert!(now <= woken + LIMIT + Pulse::interval(LIMIT) + Pulse::tick(LIMIT), "{gap:?}");
    }
}

/// A switch is away while no one needs the worker, which is no reason to lose it. Once something waits for it, the limit counts from then.
#[test]
fn a_worker_that_nothing_waits_for_has_longer() {
    let begin = || {
        let mut pulse = Pulse::new(LIMIT, ms(0));
        assert_eq!(pulse.handle(QUIET, ms(0)), Some(PulseAction::Beat(0)));
        (pulse, ms(0))
    };
    let (mut pulse, mut now) = begin();
    assert_eq!(silence(&mut pulse, &mut now, QUIET, QUIET_PATIENCE / 2), None);
    // It is back.
    let (mut answered, mut since) = (begin().0, ms(0));
    assert_eq!(silence(&mut answered, &mut since, QUIET, LIMIT * 20), None);
    let last = answered.next - 1;
    assert_eq!(answered.handle(PulseEvent::Echo(last), since), None);
    assert_eq!(silence(&mut answered, &mut since, TICK, LIMIT * 9 / 10), None);
    // It is not, and is needed.
    let needed = now;
    assert_eq!(silence(&mut pulse, &mut now, TICK, LIMIT * 9 / 10), None);
    let lost = silence(&mut pulse, &mut now, TICK, LIMIT);
    assert_eq!(lost, Some(PulseAction::Lost(LIMIT)));
    assert!(now > needed + LIMIT && now <= needed + LIMIT + 2 * Pulse::tick(LIMIT), "{:?}", now - needed);
    // A call that is over counts no more, and the next one begins anew.
    let (mut pulse, mut now) = begin();
    for _ in 0..10 {
        assert_eq!(silence(&mut pulse, &mut now, TICK, LIMIT * 9 / 10), None);
        assert_eq!(silence(&mut pulse, &mut now, QUIET, LIMIT), None);
    }
    // It is never needed.
    let (mut pulse, mut now) = begin();
    let lost = silence(&mut pulse, &mut now, QUIET, QUIET_PATIENCE * 2);
    assert_eq!(lost, Some(PulseAction::Lost(QUIET_PATIENCE)));
    assert!(now <= QUIET_PATIENCE + Pulse::tick(LIMIT) * 2, "{now:?}");
}

/// What the client takes to send a beat after it was decided is not held against the worker.
#[test]
fn a_beat_counts_from_when_it_is_sent() {
    let late = LIMIT / 4;
    let mut pulse = Pulse::new(LIMIT, ms(0));
    assert_eq!(pulse.handle(TICK, ms(0)), Some(PulseAction::Beat(0)));
    assert_eq!(pulse.handle(PulseEvent::Sent, late), None);
    let mut now = late;
    let lost = loop {
        now += Pulse::tick(LIMIT);
        match pulse.handle(TICK, now) {
            Some(PulseAction::Beat(_)) => assert_eq!(pulse.handle(PulseEvent::Sent, now), None),
            None => {}
            Some(action) => break action,
        }
    };
    assert_eq!(lost, PulseAction::Lost(LIMIT));
    assert!(now > late + LIMIT && now <= late + LIMIT + Pulse::tick(LIMIT), "{now:?}");
    // One that was answered meanwhile is over.
    let mut pulse = Pulse::new(LIMIT, ms(0));
    pulse.handle(TICK, ms(0));
    pulse.handle(PulseEvent::Echo(0), ms(1));
    assert_eq!(pulse.handle(PulseEvent::Sent, ms(2)), None);
    assert!(pulse.unanswered.is_empty());
}

#[test]
fn echoes_of_nothing_are_lies() {
    let after_three_beats = |echoes: &[u64]| {
        let mut pulse = Pulse::new(LIMIT, ms(0));
        for beat in 0..3 {
            let now = Pulse::interval(LIMIT) * beat;
            assert_eq!(pulse.handle(TICK, now), Some(PulseAction::Beat(beat.into())));
        }
        echoes.iter().map(|&number| pulse.handle(PulseEvent::Echo(number), ms(600))).collect::<Vec<_>>()
    };
    assert_eq!(after_three_beats(&[0, 1, 2]), [None; 3]);
    assert_eq!(after_three_beats(&[2]), [None]);
    let lied = Some(PulseAction::Lied);
    assert_eq!(after_three_beats(&[3, 0]), [lied, None]);
    assert_eq!(after_three_beats(&[1, 1]), [None, lied]);
    assert_eq!(after_three_beats(&[2, 1]), [None, lied]);
    assert_eq!(after_three_beats(&[u64::MAX]), [lied]);
}

/// However long the limit, little is remembered, and beats are neither many nor rare.
#[test]
fn beats_are_bounded() {
    for limit in [1, 10, 200, 2000, 60_000, 3_600_000].map(ms) {
        let interval = Pulse::interval(limit);
        assert!((SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval), "{limit:?}");
    }
    let mut pulse = Pulse::new(LIMIT, ms(0));
    for at in 0..10_000 {
        pulse.handle(TICK, ms(at * 10));
        assert!(pulse.unanswered.len() <= BEATS_PER_LIMIT as usize + 1);
    }
    let mut pulse = Pulse::new(LIMIT, ms(0));
    let mut now = SLEEP;
    assert_eq!(silence(&mut pulse, &mut now, TICK, WAKING_PATIENCE * 9 / 10), None);
    assert_eq!(pulse.unanswered.len(), MAX_UNANSWERED);
}
