//! Heap profiles for Linux: the data source `android.heapprofd`.
