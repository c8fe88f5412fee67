"""A report as one HTML page that needs nothing else: figures from `tasks.report`, charts by plotly.js, a template."""
