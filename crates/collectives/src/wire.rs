//! The small binary encoding of handshakes and control messages.

/// Writes fields one after the other.
#[derive(Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(mut self, v: u8) -> Self {
        self.0.push(v);
        self
    }
    pub fn u32(mut self, v: u32) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }
    pub fn u64(mut self, v: u64) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }
    pub fn bytes(self, v: &[u8]) -> Self {
        let mut w = self.u32(v.len() as u32);
        w.0.extend(v);
        w
    }
    pub fn str(self, v: &str) -> Self {
        self.bytes(v.as_bytes())
    }
}

/// Reads them back; `None` once anything is missing.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()? as usize;
        self.take(n)
    }
    pub fn str(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_no_more() {
        let w = Writer::default().u8(7).u32(8).u64(9).str("node").bytes(&[1, 2]);
        let mut r = Reader(&w.0);
        assert_eq!((r.u8(), r.u32(), r.u64()), (Some(7), Some(8), Some(9)));
        assert_eq!((r.str().as_deref(), r.bytes()), (Some("node"), Some(&[1, 2][..])));
        assert_eq!(r.u8(), None);
        assert_eq!(Reader(&[255, 255, 255, 255, 1]).bytes(), None, "a length beyond the end");
    }
}
