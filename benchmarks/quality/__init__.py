"""`make eval`: search quality on judged sets, beside what people build today."""
