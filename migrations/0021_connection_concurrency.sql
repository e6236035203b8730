-- Calls that one host may have under way at once through a connection.

ALTER TABLE connections ADD COLUMN in_flight_max int CHECK (in_flight_max > 0);
