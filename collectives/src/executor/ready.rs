//! A binary min-heap of numbers in a slice, so that many heaps share one allocation.

/// Moves the last entry, `value`, to its place; the entries before it are a heap.
pub(super) fn push(heap: &mut [u32], value: u32) {
    let mut place = heap.len() - 1;
    while place > 0 {
        let parent = (place - 1) / 2;
        if heap[parent] <= value {
            break;
        }
        heap[place] = heap[parent];
        place = parent;
    }
    heap[place] = value;
}

/// Takes the smallest entry; all entries but the last are then a heap of the others.
///
/// # Panics
///
/// The heap is empty.
pub(super) fn pop(heap: &mut [u32]) -> u32 {
    let smallest = heap[0];
    let length = heap.len() - 1;
    let value = heap[length];
    let mut place = 0;
    loop {
        let mut child = 2 * place + 1;
        if child >= length {
            break;
        }
        if child + 1 < length && heap[child + 1] < heap[child] {
            child += 1;
        }
        if value <= heap[child] {
            break;
        }
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = value;
    smallest
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use super::{pop, push};

    #[test]
    fn behaves_as_the_standard_heap() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut memory = [0_u32; 40];
        let mut length = 0;
        let mut oracle = BinaryHeap::new();
        for _ in 0..20_000 {
            if length < memory.len() && (length == 0 || rng.bool()) {
                let value = rng.u32(0..50);
                length += 1;
                push(&mut memory[..length], value);
                oracle.push(std::cmp::Reverse(value));
            } else {
                let value = pop(&mut memory[..length]);
                length -= 1;
                assert_eq!(oracle.pop(), Some(std::cmp::Reverse(value)));
            }
        }
    }
}
