//! Choice of addresses for clients.

use std::net::IpAddr;

use h3_quic::connect_ip::Prefix;

/// The gateway's own address in a network: its first host.
pub(super) fn router(pool: Prefix) -> Option<IpAddr> {
    pool.at(1)
}

/// A free address of a network, looked for from a random place: addresses do not show which client has them (RFC 9484 §11 SHOULD-2). `taken` is
/// the number of addresses in use. So many and one more are tried, of which one is free if any is.
pub(super) fn choose(pool: Prefix, random: u128, taken: usize, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    // Neither the address of the network nor that of the gateway. The last one of IPv4 is the broadcast.
    let (first, last) = (2, pool.last_offset() - u128::from(pool.address().is_ipv4()));
    let count = (last - first).checked_add(1)?;
    let tries = u128::try_from(taken).ok()?.saturating_add(1).min(count);
    let start = random % count;
    (0..tries)
        .filter_map(|step| {
            let left = count - start;
            pool.at(first + if step < left { start + step } else { step - left })
        })
        .find(|address| !is_taken(*address))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// RFC 9484 §11 SHOULD-2
    #[test]
    fn a_client_has_another_address_each_time() {
        let pool: Prefix = "10.89.0.0/16".parse().unwrap();
        let chosen = [0_u128, 1, 40_000, u128::MAX].map(|random| choose(pool, random, 0, |_| false).unwrap());
        assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), chosen.len(), "{chosen:?}");
    }

    #[test]
    fn all_addresses_are_given_once_and_then_none() {
        for (network, hosts) in [("192.0.2.0/28", 13), ("2001:db8::/124", 14), ("192.0.2.0/30", 1)] {
            let pool: Prefix = network.parse().unwrap();
            let mut taken = HashSet::new();
            for number in 0_u128.. {
                let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let Some(address) = choose(pool, random, taken.len(), |address| taken.contains(&address)) else {
                    break;
                };
                assert!(pool.contains(address) && Some(address) != router(pool) && address != pool.address());
                assert!(address != pool.last() || address.is_ipv6());
                assert!(taken.insert(address), "{address} is given twice");
            }
            assert_eq!(taken.len(), hosts, "{network}");
            // One that is given back is given again.
            let back = *taken.iter().next().unwrap();
            taken.remove(&back);
            assert_eq!(choose(pool, 5, taken.len(), |address| taken.contains(&address)), Some(back));
        }
    }

    #[test]
    fn large_networks_are_no_loop() {
        for network in ["::/0", "fd00::/8", "10.0.0.0/8"] {
            let pool: Prefix = network.parse().unwrap();
            for random in [0, 1, u128::MAX] {
                assert!(choose(pool, random, 1_000_000, |_| false).is_some_and(|address| pool.contains(address)));
            }
        }
    }
}
