//! [`DebugAnnotation`] for the types of the standard library.
//!
//! [`super::error`] has the implementations for errors. Some types are left out: `Instant` and locks mean nothing in a trace, and all others format
//! themselves well enough for [`display`](super::display) and [`debug`](super::debug).

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Saturating, Wrapping};
use std::ops::{Deref, Range, RangeFrom, RangeInclusive, RangeTo};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{self, Ordering};
use std::time::{Duration, SystemTime};

use ferretto_proto::write::DebugAnnotation as Field;

use super::text::write_lossy;
use super::time::Iso8601;
use super::{AnnotationValue, DebugAnnotation, Scalar};

/// Implements the trait for each type. `$self` names the value, and `$value` the place that it is written into.
macro_rules! annotate {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $type:ty: |$self:ident, $value:ident| $write:expr;)*) => {$(
        $(#[$attribute])*
        impl<$($generics)*> DebugAnnotation for $type {
            #[inline]
            fn write_annotation(&self, $value: AnnotationValue<'_>) {
                let $self = self;
                $write
            }
        }
    )*};
}

/// As [`annotate`], for types whose values are simple.
macro_rules! scalars {
    ($([$($generics:tt)*] $type:ty: |$self:ident| $scalar:expr;)*) => {$(
        impl<$($generics)*> DebugAnnotation for $type {
            #[inline]
            fn write_annotation(&self, value: AnnotationValue<'_>) {
                let $self = self;
                value.scalar($scalar);
            }

            #[inline(always)]
            fn as_scalar(&self) -> Option<Scalar<'_>> {
                let $self = self;
                Some($scalar)
            }
        }
    )*};
}

macro_rules! integers {
    ($($scalar:ident as $wide:ty: $($type:ty)*;)*) => {$($(scalars! {
        [] $type: |this| Scalar::$scalar(*this as $wide);
        [] NonZero<$type>: |this| Scalar::$scalar(this.get() as $wide);
    })*)*};
}

integers! {
    Int as i64: i8 i16 i32 i64 isize;
    Uint as u64: u8 u16 u32 u64 usize;
}

scalars! {
    [] bool: |this| Scalar::Bool(*this);
    [] f32: |this| Scalar::Double(f64::from(*this));
    [] f64: |this| Scalar::Double(*this);
    [] str: |this| Scalar::Text(this);
    [] String: |this| Scalar::Text(this);
}

/// As [`annotate`], for types that lead to a value.
macro_rules! forward {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> DebugAnnotation for $type {
            #[inline]
            fn write_annotation(&self, value: AnnotationValue<'_>) {
                (**self).write_annotation(value);
            }

            #[inline(always)]
            fn as_scalar(&self) -> Option<Scalar<'_>> {
                (**self).as_scalar()
            }
        }
    )*};
}

forward! {
    [T: DebugAnnotation + ?Sized] &T;
    [T: DebugAnnotation + ?Sized] &mut T;
    [T: DebugAnnotation + ?Sized] Box<T>;
    [T: DebugAnnotation + ?Sized] Rc<T>;
    [T: DebugAnnotation + ?Sized] Arc<T>;
    [B: DebugAnnotation + ToOwned + ?Sized] Cow<'_, B>;
}

macro_rules! atomics {
    ($($width:literal: $($type:ident)*;)*) => {$($(annotate! {
        /// The value at that moment, with `Ordering::Relaxed`.
        #[cfg(target_has_atomic = $width)]
        [] atomic::$type: |this, value| this.load(Ordering::Relaxed).write_annotation(value);
    })*)*};
}

atomics! {
    "8": AtomicBool AtomicI8 AtomicU8;
    "16": AtomicI16 AtomicU16;
    "32": AtomicI32 AtomicU32;
    "64": AtomicI64 AtomicU64;
    "ptr": AtomicIsize AtomicUsize;
}

annotate! {
    /// Beyond 64 bits, its decimal digits as a string.
    [] i128: |this, value| match i64::try_from(*this) {
        Ok(number) => value.int(number),
        Err(_) => value.display(this),
    };
    /// Beyond 64 bits, its decimal digits as a string.
    [] u128: |this, value| match u64::try_from(*this) {
        Ok(number) => value.uint(number),
        Err(_) => value.display(this),
    };
    [] NonZero<i128>: |this, value| this.get().write_annotation(value);
    [] NonZero<u128>: |this, value| this.get().write_annotation(value);
    /// In nanoseconds.
    [] Duration: |this, value| this.as_nanos().write_annotation(value);
    /// As text in UTC, to the nanosecond: `2026-11-23T08:13:31.000000000Z`. Such texts are in the order of the times.
    [] SystemTime: |this, value| value.display(Iso8601(*this));
    [T: DebugAnnotation] Wrapping<T>: |this, value| this.0.write_annotation(value);
    [T: DebugAnnotation] Saturating<T>: |this, value| this.0.write_annotation(value);
    [T: DebugAnnotation] Reverse<T>: |this, value| this.0.write_annotation(value);
    [T: DebugAnnotation + Copy] Cell<T>: |this, value| this.get().write_annotation(value);

    [] char: |this, value| value.string(this.encode_utf8(&mut [0; 4]));
    [] fmt::Arguments<'_>: |this, value| value.format(*this);
    /// Bytes that are not UTF-8 are replaced by U+FFFD.
    [] CStr: |this, value| write_lossy(value.writer, Field::STRING_VALUE, this.to_bytes());
    [] CString: |this, value| this.as_c_str().write_annotation(value);
    /// Parts that are not Unicode are replaced by U+FFFD.
    [] OsStr: |this, value| write_lossy(value.writer, Field::STRING_VALUE, this.as_encoded_bytes());
    [] OsString: |this, value| this.as_os_str().write_annotation(value);
    [] Path: |this, value| this.as_os_str().write_annotation(value);
    [] PathBuf: |this, value| this.as_os_str().write_annotation(value);

    [] IpAddr: |this, value| value.display(this);
    [] Ipv4Addr: |this, value| value.display(this);
    [] Ipv6Addr: |this, value| value.display(this);
    [] SocketAddr: |this, value| value.display(this);
    [] SocketAddrV4: |this, value| value.display(this);
    [] SocketAddrV6: |this, value| value.display(this);
    /// File, line and column.
    [] Location<'_>: |this, value| value.display(this);

    [P: Deref<Target: DebugAnnotation>] Pin<P>: |this, value| (**this).write_annotation(value);
    /// The address.
    [T: ?Sized] *const T: |this, value| value.pointer(this.addr() as u64);
    /// The address.
    [T: ?Sized] *mut T: |this, value| value.pointer(this.addr() as u64);
    /// The address.
    [T: ?Sized] NonNull<T>: |this, value| value.pointer(this.addr().get() as u64);
    /// The address at that moment, with `Ordering::Relaxed`.
    #[cfg(target_has_atomic = "ptr")]
    [T] atomic::AtomicPtr<T>: |this, value| this.load(Ordering::Relaxed).write_annotation(value);

    /// The value inside, or [none](AnnotationValue::none).
    [T: DebugAnnotation] Option<T>: |this, value| match this {
        Some(inner) => inner.write_annotation(value),
        None => value.none(),
    };
    /// The value inside `Ok`, or a dictionary with the error's text as its entry `Err`.
    [T: DebugAnnotation, E: fmt::Display] Result<T, E>: |this, value| match this {
        Ok(inner) => inner.write_annotation(value),
        Err(error) => value.variant("Err", super::display(error)),
    };
    /// [None](AnnotationValue::none).
    [] (): |_this, value| value.none();
    /// [None](AnnotationValue::none).
    [T: ?Sized] PhantomData<T>: |_this, value| value.none();

    [T: DebugAnnotation] [T]: |this, value| value.array(|elements| { elements.extend(this); });
    [T: DebugAnnotation, const N: usize] [T; N]: |this, value| this.as_slice().write_annotation(value);
    [T: DebugAnnotation] Vec<T>: |this, value| this.as_slice().write_annotation(value);
    [T: DebugAnnotation] VecDeque<T>: |this, value| value.array(|elements| { elements.extend(this); });
    [T: DebugAnnotation] LinkedList<T>: |this, value| value.array(|elements| { elements.extend(this); });
    /// In no particular order.
    [T: DebugAnnotation] BinaryHeap<T>: |this, value| value.array(|elements| { elements.extend(this); });
    [T: DebugAnnotation] BTreeSet<T>: |this, value| value.array(|elements| { elements.extend(this); });
    /// In no particular order.
    [T: DebugAnnotation, S] HashSet<T, S>: |this, value| value.array(|elements| { elements.extend(this); });
    [K: fmt::Display, V: DebugAnnotation] BTreeMap<K, V>: |this, value| value.dictionary(|entries| {
        entries.entries(this);
    });
    /// In no particular order.
    [K: fmt::Display, V: DebugAnnotation, S] HashMap<K, V, S>: |this, value| value.dictionary(|entries| {
        entries.entries(this);
    });

    /// A dictionary of `start` and `end`.
    [T: DebugAnnotation] Range<T>: |this, value| value.dictionary(|range| {
        range.entry("start", &this.start).entry("end", &this.end);
    });
    /// A dictionary of `start` and `last`.
    [T: DebugAnnotation] RangeInclusive<T>: |this, value| value.dictionary(|range| {
        range.entry("start", this.start()).entry("last", this.end());
    });
    /// A dictionary of `start`.
    [T: DebugAnnotation] RangeFrom<T>: |this, value| value.dictionary(|range| { range.entry("start", &this.start); });
    /// A dictionary of `end`.
    [T: DebugAnnotation] RangeTo<T>: |this, value| value.dictionary(|range| { range.entry("end", &this.end); });
}

macro_rules! tuples {
    ($($($type:ident $index:tt),+;)+) => {$(annotate! {
        [$($type: DebugAnnotation),+] ($($type,)+): |this, value| value.array(|elements| {
            $(elements.push(&this.$index);)+
        });
    })+};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11;
}
