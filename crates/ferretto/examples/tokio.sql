select
  extract_arg(arg_set_id, 'debug.number') as request,
  extract_arg(arg_set_id, 'debug.sql') as query,
  dur / 1e6 as ms
from slice
where name = 'query'
order by 1, ts
