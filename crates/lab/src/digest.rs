//! Fingerprints for names, and checksums of lines. Not for security.

/// The 64-bit FNV-1a hash.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Key of the checksum, the last field of a line.
const MARK: &str = ",\"check\":\"";
const TAIL: usize = MARK.len() + 16 + 2;

/// A JSON object as a line with its checksum.
pub(crate) fn seal(mut json: String) -> String {
    let sum = fnv1a(json.as_bytes());
    json.pop();
    json.push_str(MARK);
    json.push_str(&format!("{sum:016x}\"}}"));
    json
}

/// Returns whether a line matches its checksum. Lines without a checksum are accepted.
pub(crate) fn is_whole(line: &str) -> bool {
    let Some(cut) = line.len().checked_sub(TAIL).filter(|cut| line.is_char_boundary(*cut)) else { return true };
    let Some(sum) = line[cut..].strip_prefix(MARK).and_then(|rest| rest.strip_suffix("\"}")) else { return true };
    format!("{:016x}", fnv1a(format!("{}}}", &line[..cut]).as_bytes())) == sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn published_vectors() {
        assert_eq!(super::fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
