select
  extract_arg(arg_set_id, 'debug.key') as key,
  sum(extract_arg(arg_set_id, 'debug.hit')) as hits,
  count(*) as questions
from slice
where name = 'Get'
group by 1
