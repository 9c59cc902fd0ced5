use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A path of 50 ms with a window of so many packets, and a queue of so many milliseconds.
fn view(window: u64, queue: u32) -> View {
    View {
        window,
        smoothed_rtt: 50 * MS + queue * MS,
        min_rtt: 50 * MS,
        rate: None,
        probing: false,
        packet_threshold: 3,
    }
}

fn requests(policy: AckFrequency) -> AckRequests {
    let mut requests = AckRequests::new(policy);
    requests.set_peer(Some(MS), 25 * MS);
    requests
}

/// Reviews the path and sends the request that is due; returns its sequence number and its packets per acknowledgement.
fn ask(requests: &mut AckRequests, now: u64, view: &View) -> Option<(u64, u64)> {
    requests.review(at(now), view);
    let (sequence, request) = requests.next_request()?;
    requests.on_sent(at(now));
    Some((sequence, request.packets))
}

#[test]
fn nothing_is_asked_of_a_peer_that_does_not_understand() {
    let mut requests = AckRequests::new(AckFrequency::Fixed(10));
    requests.set_peer(None, 25 * MS);
    assert_eq!(ask(&mut requests, 0, &view(100, 50)), None);
    assert_eq!(ask(&mut self::requests(AckFrequency::Off), 0, &view(100, 50)), None);
    assert!(!requests.is_sparse() && requests.packets_per_ack() == 2);
}

#[test]
fn a_fixed_number_is_asked_for_once() {
    let mut requests = requests(AckFrequency::Fixed(10));
    assert_eq!(ask(&mut requests, 0, &view(100, 0)), Some((0, 10)));
    assert!(requests.is_sparse());
    assert_eq!(ask(&mut requests, 100, &view(10, 0)), None, "one at a time");
    requests.on_acked(0);
    assert_eq!(ask(&mut requests, 200, &view(10, 0)), None);
    // Unless the path has changed so much that the delay or the reordering no longer fits.
    let slow = View { smoothed_rtt: 400 * MS, ..view(10, 0) };
    assert_eq!(ask(&mut requests, 600, &slow), Some((1, 10)));
    assert_eq!(requests.max_ack_delay(), 100 * MS);
    requests.on_acked(1);
    assert_eq!(ask(&mut requests, 1200, &View { packet_threshold: 9, ..slow }), Some((2, 10)));
    assert_eq!(requests.newest().reordering, 9);
}

#[test]
fn the_longest_delay_that_may_be_in_force_counts() {
    let mut requests = requests(AckFrequency::Fixed(10));
    let path = |rtt| View { smoothed_rtt: rtt * MS, ..view(100, 0) };
    ask(&mut requests, 0, &path(400));
    assert_eq!(requests.max_ack_delay(), 100 * MS);
    requests.on_acked(0);
    // A shorter delay counts only when the peer is known to have it.
    ask(&mut requests, 1000, &path(20));
    assert_eq!(requests.max_ack_delay(), 100 * MS);
    requests.on_lost(1);
    assert_eq!(ask(&mut requests, 1001, &path(20)), Some((2, 10)));
    assert_eq!(requests.max_ack_delay(), 100 * MS);
    requests.on_acked(2);
    assert_eq!(requests.max_ack_delay(), 20 * MS);
    // What was acknowledged before is void, even when its packet arrives late.
    requests.on_acked(1);
    assert_eq!(requests.max_ack_delay(), 20 * MS);
}

#[test]
fn a_lost_request_is_repeated_only_while_it_is_the_newest() {
    let mut requests = requests(AckFrequency::Adaptive);
    assert_eq!(ask(&mut requests, 0, &view(240, 50)), Some((0, 20)));
    requests.on_lost(0);
    assert_eq!(ask(&mut requests, 1, &view(240, 50)), Some((1, 20)), "with a number of its own");
    requests.on_lost(0);
    assert!(!requests.wants_to_send(), "a newer one is under way");
    requests.on_acked(1);
    requests.on_lost(1);
    assert!(!requests.wants_to_send(), "the peer has it");
}

#[test]
fn requests_without_answer_are_limited() {
    let mut requests = requests(AckFrequency::Fixed(10));
    for round in 0..MAX_OPEN as u64 {
        assert_eq!(ask(&mut requests, round * 1000, &view(100, 0)), Some((round, 10)));
        requests.on_lost(round);
    }
    assert_eq!(ask(&mut requests, 100_000, &view(100, 0)), None);
    requests.on_acked(2);
    assert_eq!(ask(&mut requests, 200_000, &view(100, 0)), Some((4, 10)));
}

#[test]
fn not_more_than_once_per_round_trip() {
    let mut requests = requests(AckFrequency::Adaptive);
    ask(&mut requests, 0, &view(240, 50));
    requests.on_acked(0);
    assert_eq!(ask(&mut requests, 99, &view(120, 50)), None);
    assert_eq!(ask(&mut requests, 100, &view(120, 50)), Some((1, 10)));
    requests.on_acked(1);
    assert_eq!(ask(&mut requests, 300, &view(130, 50)), None, "hardly a difference");
}

#[test]
fn the_peers_shortest_delay_is_respected() {
    let mut requests = AckRequests::new(AckFrequency::Fixed(4));
    requests.set_peer(Some(10 * MS), 25 * MS);
    ask(&mut requests, 0, &View { smoothed_rtt: 2 * MS, min_rtt: MS, ..view(10, 0) });
    assert_eq!(requests.newest().delay, 10 * MS);
}

/// Packets per acknowledgement that `adaptive` asks for.
fn adaptive(view: &View) -> u64 {
    let promised = Request { packets: 2, delay: 25 * MS, reordering: 1 };
    AckFrequency::Adaptive.request(&promised, view).packets
}

#[test]
fn adaptive_follows_the_queue() {
    // A full queue of one bandwidth-delay product: a twelfth of the window.
    assert_eq!(adaptive(&view(200, 50)), 16);
    assert_eq!(adaptive(&view(1000, 50)), 32);
    // A tenth of the window queues: no more than half of that may be missing.
    assert_eq!(adaptive(&view(220, 5)), 10);
    // A window below what the path holds: next to nothing may be missing.
    assert_eq!(adaptive(&view(38, 0)), 2);
    assert_eq!(adaptive(&view(300, 0)), 8);
    assert_eq!(adaptive(&view(4, 50)), 2);
}

#[test]
fn adaptive_depends_on_what_limits() {
    let by_rate = View { rate: Some(100), ..view(200, 0) };
    assert_eq!(adaptive(&by_rate), 12);
    assert_eq!(adaptive(&View { probing: true, ..by_rate }), 10);
    // Losses have cut the window to what the rate needs: what waits for its acknowledgement is missing on the path.
    assert_eq!(adaptive(&View { rate: Some(195), ..by_rate }), 6);
    assert_eq!(adaptive(&View { rate: Some(190), ..by_rate }), 10);
    assert_eq!(adaptive(&View { rate: Some(1), ..by_rate }), 2);
    assert_eq!(adaptive(&View { probing: true, ..view(320, 0) }), 20);
}

#[test]
fn adaptive_gets_out_of_a_thin_way_back() {
    // Acknowledgements of two packets each fill the way back: the sender sees 18 packets per round trip where there are 43, and
    // half of its window waits. What follows from the rate alone would be two again.
    let held_down = View { rate: Some(18), ..view(36, 50) };
    assert_eq!(adaptive(&held_down), 4);
    assert_eq!(adaptive(&View { probing: true, ..held_down }), 4);
    assert_eq!(adaptive(&View { rate: Some(43), ..view(86, 50) }), 10);
    // With what it asks for the queue is gone, and a probe does not bring it back.
    assert_eq!(adaptive(&View { rate: Some(43), ..view(86, 2) }), 5);
    assert_eq!(adaptive(&View { rate: Some(53), probing: true, ..view(86, 2) }), 5);
}

#[test]
fn names_read_back() {
    for policy in [AckFrequency::Off, AckFrequency::Fixed(1), AckFrequency::Fixed(1000), AckFrequency::Adaptive] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    for wrong in ["", "fixed", "fixed:0", "fixed:1001", "fixed:-1", "sometimes"] {
        let error = wrong.parse::<AckFrequency>().unwrap_err();
        assert!(error.to_string().contains("there is `off`, `fixed:N`"), "{error}");
    }
}
