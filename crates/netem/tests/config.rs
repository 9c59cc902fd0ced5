//! Link settings as people write them in scenario files.

use netem::{ConfigError, Duplicate, EcnTreatment, LinkConfig, Loss, Queue, Reorder};
use proptest::prelude::*;
use tiderace_netem as netem;
use units::{Bitrate, DataSize, Duration, Probability};

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

#[test]
fn everything_written_out() {
    let config: LinkConfig = toml::from_str(
        r#"
        rate = "1.1 Mbit/s"
        queue = { drop-tail = { bytes = "64 kB" } }
        delay = "100 ms"
        jitter = "50 ms"
        jitter-period = "200 ms"
        reorder = { probability = "0.2 %", delay = "10 ms" }
        duplicate = { probability = "0.1 %", delay = "3 ms" }
        loss = { burst = { mean = "0.6 %", length = 6 } }
        corrupt = 0.001
        ecn = "bleach-ect1"
        mtu = 1350
        "#,
    )
    .unwrap();
    let expected = LinkConfig {
        rate: Some(Bitrate::from_bps(1_100_000)),
        queue: Queue::DropTail { bytes: DataSize::from_bytes(64_000) },
        delay: Duration::from_millis(100),
        jitter: Duration::from_millis(50),
        jitter_period: Duration::from_millis(200),
        jitter_reorders: false,
        reorder: Some(Reorder { probability: probability(0.002), delay: Duration::from_millis(10) }),
        duplicate: Some(Duplicate { probability: probability(0.001), delay: Duration::from_millis(3) }),
        loss: Loss::Burst { mean: probability(0.006), length: 6.0 },
        corrupt: probability(0.001),
        ecn: EcnTreatment::BleachEct1,
        mtu: Some(1350),
        ..LinkConfig::default()
    };
    assert_eq!(config, expected);
    expected.check().unwrap();
}

#[test]
fn short_forms() {
    let config: LinkConfig =
        toml::from_str("rate = \"20 Mbit/s\"\nqueue = \"125 kB\"\nloss = \"5 %\"\nduplicate = 0.01").unwrap();
    assert_eq!(config.queue, Queue::DropTail { bytes: DataSize::from_bytes(125_000) });
    assert_eq!(config.loss, Loss::Iid { p: probability(0.05) });
    assert_eq!(config.duplicate.unwrap().probability, probability(0.01));
    let whole: LinkConfig = toml::from_str("loss = 1").unwrap();
    assert_eq!(whole.loss, Loss::Iid { p: Probability::ONE });
}

#[test]
fn a_chain_may_leave_its_losses_out() {
    let config: LinkConfig = toml::from_str("loss = { gilbert-elliott = { p = 0.01, r = 0.25 } }").unwrap();
    let loss = Loss::GilbertElliott {
        p: probability(0.01),
        r: probability(0.25),
        loss_good: Probability::ZERO,
        loss_bad: Probability::ONE,
    };
    assert_eq!(config.loss, loss);
}

#[test]
fn what_is_wrong_is_named() {
    for (text, expected) in [
        ("dealy = \"5 ms\"", "unknown field `dealy`"),
        ("delay = \"5\"", "`50 ms`"),
        ("delay = 5", "invalid type"),
        ("rate = \"20\"", "`20 Mbit/s`"),
        ("queue = \"many\"", "as a size"),
        (
            "queue = { coddle = { bytes = \"1 kB\" } }",
            "unknown variant `coddle`, expected one of `drop-tail`, `codel`, `fq-codel`",
        ),
        ("queue = { drop-tail = { packets = 5 } }", "unknown field `packets`"),
        ("loss = \"101 %\"", "is not a probability"),
        ("loss = { bursts = { mean = 0.1, length = 3 } }", "unknown variant `bursts`"),
        ("loss = { burst = { mean = 0.1, lenght = 3 } }", "unknown field `lenght`"),
        ("loss = { burst = { mean = 0.1 } }", "missing field `length`"),
        ("reorder = { probability = 2.0 }", "is not a probability"),
        ("mtu = -1", "-1"),
    ] {
        let error = toml::from_str::<LinkConfig>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}:\n{error}");
    }
}

#[test]
fn contradictions_are_refused() {
    let tail = Queue::DropTail { bytes: DataSize::from_bytes(1) };
    let link = LinkConfig::default;
    let burst = |mean, length| LinkConfig { loss: Loss::Burst { mean: probability(mean), length }, ..link() };
    let chain = |p, r| Loss::GilbertElliott {
        p: probability(p),
        r: probability(r),
        loss_good: Probability::ZERO,
        loss_bad: Probability::ONE,
    };
    let impossible = |mean, length| ConfigError::ImpossibleBurst { mean: probability(mean), length };
    let reorder = Some(Reorder { probability: probability(0.1), delay: Duration::ZERO });
    for (config, expected) in [
        (LinkConfig { rate: Some(Bitrate::from_bps(0)), queue: tail, ..link() }, ConfigError::ZeroRate),
        (LinkConfig { rate: Some(Bitrate::from_mbps(1)), ..link() }, ConfigError::RateWithoutQueue),
        (LinkConfig { queue: tail, ..link() }, ConfigError::QueueWithoutRate),
        (burst(0.01, 0.5), impossible(0.01, 0.5)),
        (burst(1.0, 6.0), impossible(1.0, 6.0)),
        // 90 % lost in bursts of 6 would need gaps of two thirds of a packet.
        (burst(0.9, 6.0), impossible(0.9, 6.0)),
        (LinkConfig { loss: chain(0.0, 0.0), ..link() }, ConfigError::FrozenChain),
        (LinkConfig { reorder, ..link() }, ConfigError::ReorderWithoutDelay),
        (LinkConfig { jitter_reorders: true, ..link() }, ConfigError::NoJitter),
        (LinkConfig { mtu: Some(1227), ..link() }, ConfigError::TinyMtu(1227)),
    ] {
        assert_eq!(config.check(), Err(expected));
    }
    assert!(burst(0.01, f64::NAN).check().is_err());
    burst(0.01, f64::INFINITY).check().unwrap_err();
}

fn spans() -> impl Strategy<Value = Duration> {
    (0u64..10_000_000_000).prop_map(Duration::from_nanos)
}

fn probabilities() -> impl Strategy<Value = Probability> {
    (0.0f64..=1.0).prop_map(probability)
}

fn losses() -> impl Strategy<Value = Loss> {
    let chain = (probabilities(), probabilities(), probabilities(), probabilities());
    prop_oneof![
        Just(Loss::None),
        probabilities().prop_map(|p| Loss::Iid { p }),
        (probabilities(), 1.0f64..100.0).prop_map(|(mean, length)| Loss::Burst { mean, length }),
        chain.prop_map(|(p, r, loss_good, loss_bad)| Loss::GilbertElliott { p, r, loss_good, loss_bad }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_reads_back(
        rate in prop::option::of((1u64..100_000_000_000).prop_map(Bitrate::from_bps)),
        queue in prop::option::of(0u64..1_000_000_000),
        (delay, jitter, jitter_period, late, copy) in (spans(), spans(), spans(), spans(), spans()),
        loss in losses(),
        (corrupt, reorder, duplicate) in (probabilities(), probabilities(), probabilities()),
        jitter_reorders: bool,
        mtu in prop::option::of(1228u32..9000),
    ) {
        let config = LinkConfig {
            rate,
            queue: queue.map_or(Queue::Unlimited, |bytes| Queue::DropTail { bytes: DataSize::from_bytes(bytes) }),
            delay,
            jitter,
            jitter_period,
            jitter_reorders,
            reorder: mtu.map(|_| Reorder { probability: reorder, delay: late }),
            duplicate: mtu.map(|_| Duplicate { probability: duplicate, delay: copy }),
            loss,
            corrupt,
            mtu,
            ..LinkConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        prop_assert_eq!(toml::from_str::<LinkConfig>(&text).unwrap(), config, "{}", text);
    }
}
