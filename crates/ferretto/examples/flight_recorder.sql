with slowest as (select * from slice where name = 'handle' order by dur desc limit 1)
select extract_arg(slowest.arg_set_id, 'debug.number') as request, step.name, step.dur / 1e6 as ms
from slowest, slice step
where step.parent_id = slowest.id
order by step.dur desc
