//! A box whose content its own crate drops.
//!
//! The compiler builds the code that drops a value, and all values in it, anew in each codegen unit of each crate where such a value may be dropped.
//! For the large states that one crate makes and another keeps, such as the service in its host, that is a tenth of the other crate's code.
//! [`OutOfLine`] calls a function instead, which only the first crate compiles.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A type that is dropped by a function of its own crate.
pub trait DropOutOfLine {
    /// Drops it. An implementation is an empty function with `#[inline(never)]`.
    fn drop_out_of_line(self: Box<Self>);
}

/// A box of a value that is dropped by [`DropOutOfLine::drop_out_of_line`].
pub struct OutOfLine<T: DropOutOfLine>(ManuallyDrop<Box<T>>);

impl<T: DropOutOfLine> OutOfLine<T> {
    /// Puts the value into a box.
    pub fn new(value: T) -> Self {
        OutOfLine(ManuallyDrop::new(Box::new(value)))
    }
}

impl<T: DropOutOfLine> Drop for OutOfLine<T> {
    fn drop(&mut self) {
        // SAFETY: this is called once, and nothing looks at the field afterwards.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        value.drop_out_of_line();
    }
}

impl<T: DropOutOfLine> Deref for OutOfLine<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DropOutOfLine> DerefMut for OutOfLine<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: DropOutOfLine + fmt::Debug> fmt::Debug for OutOfLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    struct Counted(#[allow(dead_code)] Rc<()>);

    impl DropOutOfLine for Counted {
        #[inline(never)]
        fn drop_out_of_line(self: Box<Self>) {}
    }

    #[test]
    fn the_value_is_dropped_once_with_its_box() {
        let count = Rc::new(());
        let value = OutOfLine::new(Counted(Rc::clone(&count)));
        assert_eq!(Rc::strong_count(&count), 2);
        drop(value);
        assert_eq!(Rc::strong_count(&count), 1);
    }
}
