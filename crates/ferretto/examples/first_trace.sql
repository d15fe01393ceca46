select thread.name, slice.name, count(*), sum(slice.dur) / 1e6 as ms
from slice
join thread_track on thread_track.id = slice.track_id
join thread using (utid)
group by 1, 2
