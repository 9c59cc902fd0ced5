//! Counters of an endpoint.

/// Counters of an endpoint for events outside of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams that belonged to no connection and were not answered.
    pub dropped: u64,
    /// Version Negotiation packets sent.
    pub version_negotiations: u64,
    /// Retry packets sent.
    pub retries: u64,
    /// Stateless resets sent.
    pub resets: u64,
    /// Connections refused because of a limit.
    pub refused: u64,
    /// First packets dropped because too many handshakes waited for TLS: their clients try again.
    pub overloaded: u64,
    /// Datagrams handed over to the shard that their connection ID names.
    pub forwarded: u64,
    /// Connections that were started, by either side.
    pub connections: u64,
    /// 0-RTT packets that arrived before the first packet of their connection and were kept.
    pub early_kept: u64,
    /// First packets refused because of a Retry token that was too old or not theirs.
    pub tokens_invalid: u64,
    /// Tokens whose key the ring does not have any more. The client is as one without a token.
    pub tokens_unknown_key: u64,
    /// NEW_TOKEN tokens that were too old. The client is as one without a token.
    pub tokens_expired: u64,
    /// NEW_TOKEN tokens that were used before, or from another address. The client is as one without a token.
    pub tokens_not_accepted: u64,
    /// NEW_TOKEN tokens without an answer of the register of used tokens: it was full, or its answer was pending. The client is treated as
    /// one without a token.
    pub tokens_unjudged: u64,
    /// Tokens that are not ours. The client is as one without a token.
    pub tokens_foreign: u64,
    /// CONNECTION_CLOSE frames sent again to clients that did not know that their connection has ended.
    pub closes_repeated: u64,
    /// Connections refused because the process's memory is scarce.
    pub refused_for_memory: u64,
    /// Connections closed because they held more than their own budget.
    pub closed_over_budget: u64,
    /// Connections closed because the process's memory was exhausted, and they held the most.
    pub closed_for_process: u64,
}

impl std::ops::AddAssign for EndpointStats {
    fn add_assign(&mut self, other: Self) {
        self.dropped += other.dropped;
        self.version_negotiations += other.version_negotiations;
        self.retries += other.retries;
        self.resets += other.resets;
        self.refused += other.refused;
        self.overloaded += other.overloaded;
        self.forwarded += other.forwarded;
        self.connections += other.connections;
        self.early_kept += other.early_kept;
        self.tokens_invalid += other.tokens_invalid;
        self.tokens_unknown_key += other.tokens_unknown_key;
        self.tokens_expired += other.tokens_expired;
        self.tokens_not_accepted += other.tokens_not_accepted;
        self.tokens_unjudged += other.tokens_unjudged;
        self.tokens_foreign += other.tokens_foreign;
        self.closes_repeated += other.closes_repeated;
        self.refused_for_memory += other.refused_for_memory;
        self.closed_over_budget += other.closed_over_budget;
        self.closed_for_process += other.closed_for_process;
    }
}
