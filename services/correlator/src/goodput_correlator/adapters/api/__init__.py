"""The REST and event-stream interface. One router a resource; `app.create` puts them together."""
