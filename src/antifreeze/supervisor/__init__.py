"""The one owner of workers: decides (state, policy: pure), then acts (pool, process)."""
