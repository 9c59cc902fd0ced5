//! HEADERS frames in bytes, for peers that say what no library would.

/// A HEADERS frame with literal names and values.
pub(crate) fn fields(list: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0, 0];
    for (name, value) in list {
        assert!(name.len() < 7 + 127 && value.len() < 127);
        if name.len() < 7 {
            block.push(0x20 | name.len() as u8);
        } else {
            block.extend([0x27, (name.len() - 7) as u8]);
        }
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let mut frame = vec![0x01];
    frame.extend((0x4000 | block.len() as u16).to_be_bytes());
    frame.extend(block);
    frame
}
