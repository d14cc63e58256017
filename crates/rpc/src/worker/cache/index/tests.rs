//! The index beside a list that is searched whole for every answer.

use super::*;

/// An entry, or an entry in the making, which has no hash.
#[derive(Clone, Debug)]
struct Item {
    domain: Domain,
    hash: Option<u64>,
    name: String,
    listed: Listed,
}

/// What the index stands for.
#[derive(Debug, Default)]
struct List(Vec<Item>);

impl List {
    fn has(&self, of: impl Fn(&Domain) -> bool) -> u64 {
        self.0.iter().filter(|item| of(&item.domain)).map(|item| item.listed.bytes).sum()
    }

    /// The same rule, looking at everything.
    fn victim(&self, domain: Option<&Domain>, bytes: u64) -> Option<(Domain, u64)> {
        let entries = || self.0.iter().filter_map(|item| Some((&item.domain, item.hash?, item.listed)));
        let of_share = |share: &Share| self.has(|domain| domain.share() == *share);
        let most = entries()
            .map(|(domain, ..)| domain.share())
            .max_by_key(|share| (of_share(share), share.clone()))?;
        let own = domain.map(Domain::share).filter(|own| of_share(own) + bytes > of_share(&most));
        let share = own.unwrap_or(most);
        let of_domain = |domain: &Domain| self.has(|other| other == domain);
        let most = entries()
            .filter(|(domain, ..)| domain.share() == share)
            .map(|(domain, ..)| domain.clone())
            .max_by_key(|domain| (of_domain(domain), domain.clone()))?;
        let own = domain.filter(|own| own.share() == share && of_domain(own) + bytes > of_domain(&most));
        let of = own.cloned().unwrap_or(most);
        let oldest = entries()
            .filter(|(domain, ..)| **domain == of)
            .min_by_key(|(_, hash, listed)| (listed.used, *hash));
        oldest.map(|(domain, hash, _)| (domain.clone(), hash))
    }
}

fn domains() -> Vec<Domain> {
    let addresses =
        ["192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8:0:1::1]:1"];
    let addresses = addresses.iter().map(|address| Domain::of_address(address.parse().unwrap()));
    addresses.chain([Domain::of_user(1), Domain::of_user(2)]).collect()
}

#[test]
fn victims_are_those_that_a_search_of_everything_finds() {
    let domains = domains();
    let mut state = 1_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut index, mut list) = (Index::default(), List::default());
    let mut found = 0;
    for _ in 0..20_000 {
        let domain = domains[draw(domains.len() as u64) as usize].clone();
        let hash = draw(6);
        let is_entry = draw(3) > 0;
        let name = if is_entry { format!("{hash}.weights") } else { format!("{hash}.partial") };
        let listed = Listed { bytes: draw(40), used: (draw(20) as i64, draw(2) as i64) };
        let goes = draw(2) == 0;
        list.0.retain(|item| item.domain != domain || item.name != name);
        index.change(&domain, |of_domain| match (is_entry, goes) {
            (true, true) => of_domain.forget(hash),
            (true, false) => of_domain.put(hash, listed),
            (false, true) => of_domain.forget_partial(&name),
            (false, false) => of_domain.put_partial(&name, listed.bytes),
        });
        if !goes {
            list.0.push(Item { domain: domain.clone(), hash: is_entry.then_some(hash), name, listed });
        }
        let asks = domains.get(draw(domains.len() as u64 + 1) as usize);
        let bytes = draw(60);
        let victim = index.victim(asks, bytes);
        assert_eq!(victim, list.victim(asks, bytes), "{asks:?} wants {bytes}: {list:?}");
        found += usize::from(victim.is_some());
        let kept = list.0.iter().filter(|item| item.hash.is_some());
        let (entries, kept) = kept.fold((0, 0), |(n, sum), item| (n + 1, sum + item.listed.bytes));
        let (sums, all) = (index.sums(), list.has(|_| true));
        assert_eq!((sums.entries, sums.kept, sums.in_the_making), (entries, kept, all - kept));
        let there: std::collections::HashSet<_> = list.0.iter().map(|item| &item.domain).collect();
        assert_eq!(sums.names(), list.0.len() + there.len());
    }
    assert!(found > 10_000, "{found}");
}

#[test]
fn nothing_is_remembered_of_those_who_have_nothing() {
    let mut index = Index::default();
    let domain = Domain::of_user(1);
    index.change(&domain, |of_domain| of_domain.put(1, Listed { bytes: 5, used: (1, 0) }));
    index.change(&domain, OfDomain::put_note);
    assert_eq!((index.notes(&domain), index.sums().names()), (1, 3));
    index.change(&domain, |of_domain| *of_domain = OfDomain::default());
    assert_eq!(*index.sums(), Sums::default());
    assert!(index.shares.is_empty() && index.order.is_empty() && index.entry(&domain, 1).is_none());
}
