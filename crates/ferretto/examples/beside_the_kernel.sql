select
  slice.name,
  state,
  sum(min(slice.ts + slice.dur, thread_state.ts + thread_state.dur) - max(slice.ts, thread_state.ts)) / 1e6 as ms
from slice
join thread_track on thread_track.id = slice.track_id
join thread_state using (utid)
where slice.category = 'work'
  and thread_state.ts < slice.ts + slice.dur and thread_state.ts + thread_state.dur > slice.ts
group by 1, 2
order by 1, 3 desc
