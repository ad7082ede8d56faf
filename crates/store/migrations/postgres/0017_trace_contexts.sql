-- 0017_trace_contexts.sql: the trace that a publisher has said its event belongs to. Mirrors `TraceContext` in core.
-- The same in both tables and last in both: one is copied into the other by place.
ALTER TABLE events ADD COLUMN trace_context TEXT COLLATE "C";  -- its traceparent, and on a second line its tracestate; NULL where nothing was said
ALTER TABLE events_kept ADD COLUMN trace_context TEXT COLLATE "C";
