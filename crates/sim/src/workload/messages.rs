//! Messages: their sizes, and schedules of them.

use rand_core::RngCore;
use serde::{Deserialize, Serialize};
use units::{DataSize, Instant, RandomStream, Seed};

use super::arrivals::{ArrivalTimes, Arrivals};

/// Size distribution of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Sizes {
    /// All the same.
    Fixed(DataSize),
    /// Evenly from `min` to `max`, both included.
    Uniform {
        /// Smallest.
        min: DataSize,
        /// Largest; not less than `min` (else all are `min`).
        max: DataSize,
    },
}

impl Sizes {
    /// Next size in bytes. Draws once for any distribution.
    pub fn draw(&self, draws: &mut RandomStream) -> u64 {
        let draw = draws.next_u64();
        match self {
            Self::Fixed(size) => size.as_bytes(),
            Self::Uniform { min, max } => {
                let span = max.as_bytes().saturating_sub(min.as_bytes());
                let offset = (u128::from(draw) * (u128::from(span) + 1)) >> 64;
                min.as_bytes() + u64::try_from(offset).unwrap_or(span)
            }
        }
    }
}

/// A series of exchanges: a request one way and a response the other way. With responses of zero bytes it is a series of
/// one-way messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Schedule {
    /// Time at which requests are made. Open loop: a request does not wait for the response to the one before, so a slow transport
    /// cannot hide by being asked less often.
    pub arrivals: Arrivals,
    /// Size of a request.
    pub request: Sizes,
    /// Size of a response.
    pub response: Sizes,
    /// Number of requests; without it they never end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// One exchange of a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number, from zero.
    pub number: u64,
    /// Time at which the request is due. Latencies count from here, not from when it could be sent.
    pub at: Instant,
    /// Bytes of the request.
    pub request: u64,
    /// Bytes of the response.
    pub response: u64,
}

/// The exchanges of a [`Schedule`], in the order of time.
#[derive(Clone, Debug)]
pub struct Messages {
    schedule: Schedule,
    times: ArrivalTimes,
    sizes: RandomStream,
    number: u64,
}

impl Messages {
    /// The exchanges from `start` on. The seed is that of this client's workload.
    pub fn new(schedule: Schedule, start: Instant, seed: &Seed) -> Self {
        let times = ArrivalTimes::new(schedule.arrivals, start, seed.stream("arrivals"));
        Self { schedule, times, sizes: seed.stream("sizes"), number: 0 }
    }
}

impl Iterator for Messages {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let number = self.number;
        if self.schedule.count.is_some_and(|count| number >= count) {
            return None;
        }
        let at = self.times.next()?;
        self.number += 1;
        let request = self.schedule.request.draw(&mut self.sizes);
        let response = self.schedule.response.draw(&mut self.sizes);
        Some(Message { number, at, request, response })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Sizes = Sizes::Uniform { min: DataSize::from_bytes(100), max: DataSize::from_bytes(109) };

    #[test]
    fn sizes_cover_their_range() {
        let mut draws = Seed::from_number(1).stream("sizes");
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[usize::try_from(SIZE.draw(&mut draws) - 100).unwrap()] += 1;
        }
        // 1000 expected in each, standard deviation 30.
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
    }

    #[test]
    fn a_schedule_as_written_in_a_file() {
        let schedule: Schedule = toml::from_str(
            "arrivals = { poisson = { per-second = 50 } }\nrequest = { fixed = \"200 B\" }\n\
             response = { uniform = { min = \"1 kB\", max = \"20 kB\" } }\ncount = 3",
        )
        .unwrap();
        let messages: Vec<Message> = Messages::new(schedule, Instant::ZERO, &Seed::from_number(1)).collect();
        assert_eq!(messages.len(), 3);
        assert!(messages.is_sorted_by_key(|message| message.at));
        assert!(messages.iter().all(|message| message.request == 200 && message.response >= 1000));
        assert!(toml::from_str::<Schedule>("arrivals = \"at-once\"\nrequest = { fixed = \"1 B\" }").is_err());
    }

    #[test]
    fn sizes_do_not_depend_on_the_arrivals() {
        let schedule = |arrivals| Schedule { arrivals, request: SIZE, response: SIZE, count: Some(100) };
        let sizes = |arrivals| {
            Messages::new(schedule(arrivals), Instant::ZERO, &Seed::from_number(7))
                .map(|message| (message.request, message.response))
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(Arrivals::AtOnce), sizes(Arrivals::Poisson { per_second: 10 }));
    }
}
