"""Operations called as functions of a web server: one standard request and answer, for HTTP and for CGI."""

# Imports inside functions: what few requests ask for is loaded with the first; under CGI each request is a new process.
