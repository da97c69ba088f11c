-- Reads the store's clock.
-- KEYS: any; in a cluster it decides which server is asked.
-- Answers milliseconds since 1970.
-- include now
return now
