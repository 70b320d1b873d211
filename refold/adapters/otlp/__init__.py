"""OTLP over HTTP: traces to an endpoint and from exporters, as protobuf or JSON."""
