-- The threads of the kernel: those of kthreadd, whose pid is 2, and of its children.
create or replace perfetto view linux_kernel_threads as
select process.upid as upid, thread.utid as utid, process.pid as pid, thread.tid as tid, process.name as process_name, thread.name as thread_name,
    process.machine_id as machine_id
from process join thread on thread.upid = process.upid
where process.pid = 2 or process.parent_upid in (select upid from process where pid = 2);
