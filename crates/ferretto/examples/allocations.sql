select
  function.name,
  count(*) as allocations,
  sum(extract_arg(allocation.arg_set_id, 'debug.bytes')) as bytes
from slice allocation
join slice function on function.id = allocation.parent_id
where allocation.name = 'Allocate'
group by 1
order by 3 desc
