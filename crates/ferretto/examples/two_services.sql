select ask.dur / 1e6 as ask_ms, answer.dur / 1e6 as answer_ms, (ask.dur - answer.dur) / 1e6 as way_ms
from flow
join slice ask on ask.id = flow.slice_out and ask.name = 'ask'
join slice answer on answer.id = flow.slice_in and answer.name = 'answer'
where ask.dur > 0 and answer.dur > 0
order by ask.ts
