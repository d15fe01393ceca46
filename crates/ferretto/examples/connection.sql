select
  name,
  dur / 1e6 as ms,
  extract_arg(arg_set_id, 'debug.attempt') as attempt,
  extract_arg(arg_set_id, 'debug.error') as error
from slice
where name = 'connect'
order by ts
