//! Graph → kind, certainty, headline.
