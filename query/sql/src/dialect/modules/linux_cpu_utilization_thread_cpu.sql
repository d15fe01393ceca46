include perfetto module linux.cpu.utilization.general;
-- What each thread did on each CPU.
create or replace perfetto view cpu_cycles_per_thread_per_cpu as
select utid, ucpu, max(cpu.cpu) as cpu, _cpu_cycles!(dur)
from _cpu_time_at_frequencies join cpu using (ucpu) group by utid, ucpu;

create or replace perfetto function cpu_cycles_per_thread_per_cpu_in_interval(ts TIMESTAMP, dur LONG)
returns table(utid LONG, ucpu LONG, cpu LONG, millicycles LONG, megacycles LONG, runtime DURATION, min_freq LONG, max_freq LONG, avg_freq LONG) as
select utid, ucpu, max(cpu.cpu) as cpu, _cpu_cycles_in_interval!()
from _cpu_time_at_frequencies_in_interval($ts, $dur) join cpu using (ucpu) group by utid, ucpu;
