"""Operations called as functions of a web server: one standard request and answer, for HTTP and for CGI."""
