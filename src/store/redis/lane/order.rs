//! A queue whose items are found by id.
//!
//! ```text
//! push a, b, c     slots [0: a] [1: b] [2: c]
//! remove(1)        slots [0: a] [1: –] [2: c]      gone: 1
//! remove(0)        slots [2: c]                    gone: 0, the empty slots at the front go with the first
//! ```

use std::collections::VecDeque;

pub(super) type Id = u64;

/// The number of empty slots that are kept even if there are fewer items.
const MOST_GONE: usize = 64;

/// Items in the order in which they came, with rising ids.
///
/// Most items leave in the order in which they came. An item that leaves from the middle leaves an empty slot behind, and
/// from time to time all empty slots are removed: while a server is away, callers come and go.
#[derive(Debug)]
pub(super) struct Order<T> {
    next: Id,
    /// Sorted by id. The first slot is not empty.
    slots: VecDeque<Slot<T>>,
    /// The number of empty slots.
    gone: usize,
}

#[derive(Debug)]
struct Slot<T> {
    id: Id,
    item: Option<T>,
}

impl<T> Order<T> {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            slots: VecDeque::new(),
            gone: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The id of the first item, or of the next one to come.
    pub(super) fn first_id(&self) -> Id {
        self.slots.front().map_or(self.next, |slot| slot.id)
    }

    /// Appends an item.
    pub(super) fn push(&mut self, item: T) -> Id {
        let id = self.next;
        self.next += 1;
        self.slots.push_back(Slot {
            id,
            item: Some(item),
        });
        id
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let at = self.position(id)?;
        self.slots[at].item.as_mut()
    }

    /// Removes an item. `None` if the item has left already.
    pub(super) fn remove(&mut self, id: Id) -> Option<T> {
        let at = self.position(id)?;
        let item = self.slots[at].item.take()?;
        self.gone += 1;
        self.sweep();
        Some(item)
    }

    /// Drops an item in place, which is cheaper than moving it out.
    pub(super) fn discard(&mut self, id: Id) {
        if let Some(at) = self.position(id)
            && self.slots[at].item.is_some()
        {
            self.slots[at].item = None;
            self.gone += 1;
            self.sweep();
        }
    }

    /// The first item with this id or a later one.
    pub(super) fn first_from(&mut self, id: Id) -> Option<(Id, &mut T)> {
        if id >= self.next {
            return None;
        }
        let at = self.position(id);
        let at = at.unwrap_or_else(|| self.slots.partition_point(|slot| slot.id < id));
        let mut slots = self.slots.range_mut(at..);
        slots.find_map(|slot| Some((slot.id, slot.item.as_mut()?)))
    }

    /// The number of items with this id or a later one, or a larger number.
    pub(super) fn at_most_from(&self, id: Id) -> usize {
        usize::try_from(self.next.saturating_sub(id)).unwrap_or(usize::MAX)
    }

    /// All items, in their order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Id, &mut T)> {
        let items = self.slots.iter_mut();
        items.filter_map(|slot| Some((slot.id, slot.item.as_mut()?)))
    }

    /// Removes all items. Ids go on rising, so that no id is used twice.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.gone = 0;
    }

    /// The index of the slot with this id.
    fn position(&self, id: Id) -> Option<usize> {
        // Usually no id is missing before this one.
        let guess = usize::try_from(id.checked_sub(self.first_id())?).ok()?;
        match self.slots.get(guess) {
            Some(slot) if slot.id == id => Some(guess),
            _ => self.slots.binary_search_by_key(&id, |slot| slot.id).ok(),
        }
    }

    /// Removes empty slots at the front, and all of them if there are too many.
    fn sweep(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.item.is_none()) {
            self.slots.pop_front();
            self.gone -= 1;
        }
        if self.gone > self.slots.len() / 2 + MOST_GONE {
            self.slots.retain(|slot| slot.item.is_some());
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_id_after_others_have_left() {
        let mut order = Order::new();
        let ids: Vec<Id> = (0..1000).map(|n| order.push(n)).collect();
        for id in ids.iter().filter(|id| *id % 7 != 3) {
            assert_eq!(order.remove(*id), Some(*id));
            assert_eq!(order.remove(*id), None);
        }
        let left: Vec<Id> = ids.into_iter().filter(|id| id % 7 == 3).collect();
        let found: Vec<Id> = order.iter_mut().map(|(id, _)| id).collect();
        assert_eq!((found, order.first_id()), (left.clone(), 3));
        for id in left {
            assert_eq!(order.first_from(id - 2), Some((id, &mut { id })));
            assert_eq!(order.get_mut(id), Some(&mut { id }));
        }
        assert_eq!(order.push(1000), 1000);
    }

    #[test]
    fn items_that_left_take_no_room() {
        let mut order = Order::new();
        order.push(0);
        for n in 1..10_000 {
            let id = order.push(n);
            order.remove(id);
            assert!(order.slots.len() <= 2 * MOST_GONE + 3);
        }
        order.remove(0);
        assert!(order.is_empty() && order.gone == 0);
    }
}
