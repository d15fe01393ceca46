-- The calls of all stacks as a tree: a node for each function of each call, those that are inlined in it too. A node's caller is its parent.
create or replace perfetto view ferretto_call_tree as
with frames as (
    select id, coalesce(deobfuscated_name, name) as name, mapping, symbol_set_id, innermost, outermost
    from stack_profile_frame left join (
        select symbol_set_id as of_set, min(id) as innermost, max(id) as outermost from stack_profile_symbol group by symbol_set_id) as symbols
        on of_set = symbol_set_id),
nodes as (
    select row_number() over (order by callsite.id, symbol.id) - 1 as id, callsite.id as callsite_id, symbol.id as symbol_id,
        case when symbol.id is frames.outermost then callsite.parent_id else callsite.id end as caller,
        case when symbol.id is frames.outermost then caller_frames.innermost else symbol.id + 1 end as caller_symbol,
        symbol.id is frames.innermost as is_leaf, coalesce(symbol.name, frames.name, '[Unknown]') as name, frames.mapping as mapping,
        source_file, line_number
    from stack_profile_callsite as callsite
        join frames on frames.id = callsite.frame_id
        left join stack_profile_symbol as symbol on symbol.symbol_set_id = frames.symbol_set_id
        left join stack_profile_callsite as caller_callsite on caller_callsite.id = callsite.parent_id
        left join frames as caller_frames on caller_frames.id = caller_callsite.frame_id)
select nodes.id as id, callers.id as parent_id, nodes.callsite_id as callsite_id, nodes.is_leaf as is_leaf, nodes.name as name,
    stack_profile_mapping.name as mapping_name, nodes.source_file as source_file, nodes.line_number as line_number
from nodes
    left join nodes as callers on callers.callsite_id = nodes.caller and callers.symbol_id is nodes.caller_symbol
    join stack_profile_mapping on stack_profile_mapping.id = nodes.mapping;

-- The part of that tree that has these samples, with `a` and `b` of the samples that end at a node, and of those that pass it. A sample passes all nodes of
-- the call sites above its own.
create or replace perfetto macro ferretto_summary_tree(samples TableOrSubquery) returns TableOrSubquery as (
    with recursive leaves as (
        select callsite_id, sum(a) as a, sum(b) as b from $samples group by callsite_id),
    passed as (
        select callsite_id, a, b from leaves
        union all
        select callsite.parent_id, passed.a, passed.b
        from passed join stack_profile_callsite as callsite on callsite.id = passed.callsite_id where callsite.parent_id is not null),
    cumulative as (select callsite_id, sum(a) as a, sum(b) as b from passed group by callsite_id)
    select tree.id as id, parent_id, name, mapping_name, source_file, line_number, cumulative.a as cumulative_a, cumulative.b as cumulative_b,
        case when is_leaf then coalesce(leaves.a, 0) else 0 end as self_a, case when is_leaf then coalesce(leaves.b, 0) else 0 end as self_b
    from cumulative join ferretto_call_tree as tree on tree.callsite_id = cumulative.callsite_id
        left join leaves on leaves.callsite_id = cumulative.callsite_id
);
