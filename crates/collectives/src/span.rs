//! A part of a buffer that an operation works on.
//!
//! One step of a ring sends one part of a buffer and receives into another. The borrow checker
//! can't see that the two are disjoint, so inside an operation buffers are pointers with a length.

use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a span is used by the one thread that runs the operation, which borrows or owns the
// buffer for as long.
unsafe impl Send for Span {}

impl Span {
    /// The caller keeps `slice` borrowed for as long as the span and its parts are used.
    pub fn of(slice: &mut [u8]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len() }
    }

    /// Of a buffer that is only read: `get` and sending are all that may be done with it.
    pub fn read_only(slice: &[u8]) -> Self {
        Self { ptr: slice.as_ptr().cast_mut(), len: slice.len() }
    }

    /// Of memory that is not a Rust buffer; the caller answers for it being there.
    pub fn raw(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    pub fn empty() -> Self {
        Self { ptr: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        Self { ptr: unsafe { self.ptr.add(range.start) }, len: range.end - range.start }
    }

    /// # Safety
    /// Nothing else may write to this part while the slice lives.
    pub unsafe fn get<'a>(self) -> &'a [u8] {
        // SAFETY: `of` and `part` keep it in bounds of a borrowed buffer; the rest is the caller's.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// # Safety
    /// Nothing else may read or write this part while the slice lives, and the span must not be
    /// `read_only`.
    pub unsafe fn get_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: as in `get`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

/// `total` bytes in `parts` parts of whole elements, as even as can be: the range of one.
pub(crate) fn share(total: usize, element: usize, parts: usize, index: usize) -> Range<usize> {
    let count = total / element;
    let (each, more) = (count / parts, count % parts);
    let start = index * each + index.min(more);
    let end = start + each + usize::from(index < more);
    start * element..end * element
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once_and_differ_by_one_element() {
        for (total, element, parts) in [(40, 4, 3), (8, 8, 5), (0, 4, 2), (28, 4, 7), (9, 1, 4)] {
            let mut end = 0;
            for i in 0..parts {
                let r = share(total, element, parts, i);
                assert_eq!(r.start, end);
                assert!(r.len() / element <= total / element / parts + 1);
                end = r.end;
            }
            assert_eq!(end, total);
        }
    }
}
