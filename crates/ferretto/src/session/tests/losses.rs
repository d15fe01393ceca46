//! What sessions say of their losses.

use super::*;

#[test]
fn what_a_full_buffer_lost_is_told_for_each_buffer() {
    let _alone = alone();
    let recorder = Recorder::new();
    let full = Buffer::new(64).keep_first();
    let config = TraceConfig::new()
        .buffer(full)
        .buffer_kb(64)
        .buffer_kb(4096)
        .data_source(DataSource::new(&recorder.name).target_buffer(0))
        .data_source(DataSource::new(&recorder.name).target_buffer(1))
        .data_source(DataSource::new(&recorder.name).target_buffer(2));
    let session = started(&config);
    assert_eq!(session.losses().unwrap().buffers, [BufferLosses::default(); 3]);
    for _ in 0..100 {
        recorder.write(&"x".repeat(2000));
    }
    session.stop_blocking().unwrap();
    let losses = session.losses().unwrap();
    let [first, ring, large] = losses.buffers[..] else {
        panic!("{losses:?}");
    };
    assert!(
        first.chunks_discarded > 0 && first.bytes_overwritten == 0,
        "{first:?}"
    );
    assert!(
        ring.chunks_overwritten > 0 && ring.chunks_discarded == 0,
        "{ring:?}"
    );
    assert!(ring.bytes_overwritten > 100 * 2000 - 64 * 1024 - 4096, "{ring:?}");
    assert_eq!(large, BufferLosses::default());
    let (sender, told) = mpsc::channel();
    session.losses_with(move |losses| sender.send(losses).unwrap());
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap(), losses);
    let error = Session::in_process().losses().unwrap_err();
    assert!(matches!(error, SessionError::Rejected { .. }), "{error}");
}
