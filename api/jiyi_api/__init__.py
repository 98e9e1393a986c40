"""The reader: answers searches and readiness over HTTP. It holds nothing that cannot be thrown away."""
