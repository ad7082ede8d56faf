-- 0017_trace_contexts.sql: the trace that a publisher has said its event belongs to. Mirrors `TraceContext` in core.
ALTER TABLE events ADD COLUMN trace_context TEXT;  -- its traceparent, and on a second line its tracestate; NULL where nothing was said
