//! A cursor in a list that changes below it: it stays with its row, and the row stays in sight.

#[derive(Clone, Debug)]
pub struct List<K> {
    selected: Option<K>,
    pub cursor: usize,
    /// The first row on the screen.
    pub offset: usize,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        List { selected: None, cursor: 0, offset: 0 }
    }
}

impl<K: PartialEq + Clone> List<K> {
    pub fn selected(&self) -> Option<&K> {
        self.selected.as_ref()
    }

    /// The rows or the height are others now.
    pub fn follow(&mut self, keys: &[K], height: usize) {
        let place = self.selected.as_ref().and_then(|key| keys.iter().position(|k| k == key));
        self.put(place.unwrap_or(self.cursor), keys, height);
    }

    pub fn go(&mut self, by: isize, keys: &[K], height: usize) {
        self.put(self.cursor.saturating_add_signed(by), keys, height);
    }

    /// Back to the first row, whichever that is.
    pub fn reset(&mut self) {
        *self = List::default();
    }

    fn put(&mut self, cursor: usize, keys: &[K], height: usize) {
        self.cursor = cursor.min(keys.len().saturating_sub(1));
        self.selected = keys.get(self.cursor).cloned();
        let height = height.max(1);
        let last = keys.len().saturating_sub(height);
        let above = (self.cursor + 1).saturating_sub(height);
        self.offset = self.offset.clamp(above, self.cursor.max(above)).min(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_stays_with_its_row_and_in_sight() {
        let mut list = List::default();
        list.follow(&[1, 2, 3, 4, 5], 3);
        assert_eq!(list.selected(), Some(&1));
        list.go(3, &[1, 2, 3, 4, 5], 3);
        assert_eq!((list.selected(), list.offset), (Some(&4), 1));
        list.follow(&[9, 8, 1, 2, 3, 4, 5], 3);
        assert_eq!((list.cursor, list.selected(), list.offset), (5, Some(&4), 3));
        // Its row is gone: the one in its place.
        list.follow(&[1, 2], 3);
        assert_eq!((list.cursor, list.selected(), list.offset), (1, Some(&2), 0));
        list.go(-9, &[1, 2], 3);
        assert_eq!(list.cursor, 0);
        list.follow(&[], 3);
        assert_eq!((list.selected(), list.cursor), (None, 0));
    }
}
